// Shell completion and manual page, made from the command line's own definition.
#include <functional>
#include <memory>
#include <sstream>

#include "experiments/commands/commands.hpp"

namespace sparscale::experiments {
namespace {

struct Word {
  std::vector<std::string> names;  // --out, -o
  std::string meaning;
  std::vector<std::string> choices;
  bool takes_value = false;
};

struct Command {
  std::string path;  // "" for the program, "trace import" for a command of a command
  std::string meaning;
  std::vector<std::string> commands;
  std::vector<Word> options, arguments;
};

/// The values between braces that CLI11 shows for a checked set: TEXT:{a,b}.
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const auto open = type.find('{'), close = type.find('}');
  std::vector<std::string> choices;
  if (open == std::string::npos || close == std::string::npos || close < open) return choices;
  std::istringstream stream(type.substr(open + 1, close - open - 1));
  for (std::string one; std::getline(stream, one, ',');) choices.push_back(one);
  return choices;
}

void collect(const CLI::App& app, const std::string& path, std::vector<Command>& commands) {
  Command command{path, app.get_description(), {}, {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    Word word{{}, option->get_description(), choices_of(*option), option->get_items_expected_max() > 0};
    for (const std::string& name : option->get_snames()) word.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) word.names.push_back("--" + name);
    if (word.names.empty()) {
      word.names.push_back(option->get_name());
      command.arguments.push_back(word);
    } else {
      command.options.push_back(word);
    }
  }
  const auto children = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* child : children) command.commands.push_back(child->get_name());
  commands.push_back(command);
  for (const CLI::App* child : children) collect(*child, path.empty() ? child->get_name() : path + " " + child->get_name(), commands);
}

std::vector<Command> commands_of(const CLI::App& program) {
  std::vector<Command> commands;
  collect(program, "", commands);
  return commands;
}

std::string join(const std::vector<std::string>& words, const std::string& separator = " ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

/// Words that can stand after a command: its commands, options and the values that its arguments can have.
std::string words_of(const Command& command) {
  std::vector<std::string> words = command.commands;
  for (const Word& argument : command.arguments) words.insert(words.end(), argument.choices.begin(), argument.choices.end());
  for (const Word& option : command.options) words.insert(words.end(), option.names.begin(), option.names.end());
  return join(words);
}

std::string bash_function(const std::vector<Command>& commands) {
  std::string text =
      "_sparscale() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} path= word i\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    word=${COMP_WORDS[i]}\n"
      "    case \"$path${path:+ }$word\" in\n      ";
  std::vector<std::string> paths;
  for (const Command& command : commands)
    if (!command.path.empty()) paths.push_back("'" + command.path + "'");
  text += join(paths, "|") + ") path=\"$path${path:+ }$word\" ;;\n    esac\n  done\n  COMPREPLY=()\n  case \"$path:$previous\" in\n";
  for (const Command& command : commands)
    for (const Word& option : command.options) {
      if (!option.takes_value) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.names) patterns.push_back("'" + command.path + ":" + name + "'");
      text += "    " + join(patterns, "|") + ") " +
              (option.choices.empty() ? std::string("COMPREPLY=($(compgen -f -- \"$current\"))")
                                      : "COMPREPLY=($(compgen -W '" + join(option.choices) + "' -- \"$current\"))") +
              "; return ;;\n";
    }
  text += "  esac\n  case \"$path\" in\n";
  for (const Command& command : commands)
    text += "    '" + command.path + "') COMPREPLY=($(compgen -W '" + words_of(command) + "' -- \"$current\")) ;;\n";
  text +=
      "  esac\n"
      "  [[ $current == -* ]] || COMPREPLY+=($(compgen -f -- \"$current\"))\n"
      "}\n";
  return text;
}

std::string bash_script(const std::vector<Command>& commands) {
  return "# bash completion for sparscale; made by 'sparscale completion bash'.\n" + bash_function(commands) +
         "complete -o filenames -F _sparscale sparscale\n";
}

std::string zsh_script(const std::vector<Command>& commands) {
  std::string function = bash_function(commands);
  function.replace(0, std::string("_sparscale()").size(), "_sparscale_words()");
  return "#compdef sparscale\n# zsh completion for sparscale; made by 'sparscale completion zsh'.\nautoload -U +X bashcompinit && "
         "bashcompinit\n" +
         function + "_bash_complete -o filenames -F _sparscale_words\n";
}

std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return quoted + "'";
}

std::string fish_script(const std::vector<Command>& commands) {
  std::string text = "# fish completion for sparscale; made by 'sparscale completion fish'.\n";
  for (const Command& command : commands) {
    std::string condition = "__fish_use_subcommand";
    if (!command.path.empty()) {
      std::istringstream stream(command.path);
      condition.clear();
      for (std::string word; stream >> word;) condition += (condition.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + word);
      if (!command.commands.empty()) condition += "; and not __fish_seen_subcommand_from " + join(command.commands);
    }
    const std::string start = "complete -c sparscale -n " + fish_quoted(condition);
    for (const std::string& name : command.commands)
      for (const Command& child : commands)
        if (child.path == (command.path.empty() ? name : command.path + " " + name))
          text += start + " -a " + name + " -d " + fish_quoted(child.meaning) + "\n";
    for (const Word& argument : command.arguments)
      if (!argument.choices.empty()) text += start + " -a " + fish_quoted(join(argument.choices)) + "\n";
    for (const Word& option : command.options) {
      text += start;
      for (const std::string& name : option.names) text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (option.takes_value) text += option.choices.empty() ? " -r" : " -x -a " + fish_quoted(join(option.choices));
      text += " -d " + fish_quoted(option.meaning) + "\n";
    }
  }
  return text;
}

std::string roff(const std::string& text) {
  std::string safe;
  for (const char c : text) safe += c == '\\' ? std::string("\\e") : c == '-' ? std::string("\\-") : std::string(1, c);
  if (safe.starts_with('.') || safe.starts_with('\'')) safe = "\\&" + safe;
  return safe;
}

std::string manual(const std::vector<Command>& commands) {
  std::string text = ".TH SPARSCALE 1 \"\" \"sparscale " SPARSCALE_VERSION
                     "\" \"User Commands\"\n.SH NAME\n"
                     "sparscale \\- how a gradient sparsifier scales, before anyone rents the GPUs\n.SH SYNOPSIS\n"
                     ".B sparscale\n.I COMMAND\n[\\fIARGUMENT\\fR]... [\\fIOPTION\\fR]...\n.SH COMMANDS\n";
  for (const Command& command : commands) {
    if (command.path.empty()) continue;
    std::string usage = "sparscale " + command.path;
    for (const Word& argument : command.arguments) usage += " " + argument.names.front();
    text += ".SS " + roff(usage) + "\n" + roff(command.meaning) + ".\n";
    for (const std::vector<Word>* words : {&command.arguments, &command.options})
      for (const Word& word : *words)
        text += ".TP\n.B " + roff(join(word.names, ", ") + (word.choices.empty() ? "" : " {" + join(word.choices, ",") + "}")) + "\n" +
                roff(word.meaning) + "\n";
  }
  return text +
         ".SH EXIT STATUS\n0 done; 1 a run failed; 2 wrong input or usage; 3 (status) something is missing.\n"
         ".SH ENVIRONMENT\n.TP\n.B SPARSCALE_DATA\nFolder of platforms, profiles, traces, experiments and analysis, instead of the "
         "installed one.\n"
         ".TP\n.B SPARSCALE_CACHE\nFolder in which synthetic traces are kept.\n"
         ".TP\n.B SPARSCALE_PYTHON\nPython with matplotlib and numpy, for figures.\n";
}

}  // namespace

void add_completion_command(CLI::App& program) {
  auto what = std::make_shared<std::string>();
  CLI::App* command = program.add_subcommand("completion", "Print a completion script for a shell, or the manual page");
  command->add_option("what", *what, "bash, zsh, fish, or man for the manual page")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish", "man"}));
  command->callback([what, &program] {
    const std::vector<Command> commands = commands_of(program);
    write_output(*what == "bash"   ? bash_script(commands)
                 : *what == "zsh"  ? zsh_script(commands)
                 : *what == "fish" ? fish_script(commands)
                                   : manual(commands),
                 "");
  });
}

}  // namespace sparscale::experiments
