"""Runs a script in a page in headless Chromium and gives back what it found."""
import html
import json
import os
import re
import shutil
import subprocess

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def program():
    return os.environ.get("SPARSCALE_CHROMIUM") or next((path for path in map(shutil.which, PROGRAMS) if path), None)


def command(profile, *options):
    return [program(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=10000", "--window-size=1300,1000",
            f"--user-data-dir={profile}", *options]


def run(page, script, directory, *options):
    """Runs `script` (the body of a function that returns something JSON can hold) at the end of the page."""
    with open(page, encoding="utf-8") as file:
        text = file.read()
    # Errors of the page's own scripts count too: the listener stands before them.
    text = text.replace("<head>", "<head><script>window.failures = []; addEventListener('error', (e) => failures.push(e.message));"
                        "addEventListener('securitypolicyviolation', (e) => failures.push('policy: ' + e.violatedDirective));</script>", 1)
    done = ("const box = document.createElement('pre'); box.id = 'found'; let found; try { found = (() => {" + script + "})(); } catch (e) { failures.push(String(e)); }"
            "box.textContent = JSON.stringify({failures, found}); document.body.append(box);")
    text = text.replace("</body>", f"<script>{done}</script></body>")
    path = os.path.join(directory, "page.html")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    ended = subprocess.run(command(os.path.join(directory, "profile"), "--dump-dom", *options, "file://" + path), capture_output=True, text=True, check=False, timeout=240)
    match = re.search(r'<pre id="found">(.*?)</pre>', ended.stdout, re.S)
    if not match:
        raise AssertionError(f"the page did not end: {ended.returncode}, {ended.stderr[-500:]}")
    return json.loads(html.unescape(match.group(1)))
