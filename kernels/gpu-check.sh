#!/usr/bin/env bash
# Everything that needs a GPU, in one go and in at most eight minutes: builds, runs the GPU tests (also under compute-sanitizer, where there
# is one), measures every operation, compares with the copy bandwidth of the same run and with torch, where there is one.
#
#   kernels/gpu-check.sh [OUTPUT_DIRECTORY] [BUILD_DIRECTORY]        default: gpu-check and build/gpu-check
#
# Writes profile.json (a kernel profile of this GPU) and summary.md. Ends with 0 when all tests passed, 1 when something failed, 77 when
# there is nothing to run on.
set -u
source_directory=$(cd "$(dirname "$0")/.." && pwd)
output=${1:-gpu-check}
build=${2:-$source_directory/build/gpu-check}
started=$SECONDS
left() { local rest=$((480 - (SECONDS - started))); echo $((rest > 1 ? rest : 1)); }
say() { echo "[$((SECONDS - started)) s] $*" >&2; }

nvcc=$(command -v nvcc || ls "${CUDACXX:-}" "${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc 2> /dev/null | head -1)
[ -n "$nvcc" ] || { echo "skipped: no nvcc here"; exit 77; }
if ! gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2> /dev/null | head -1) || [ -z "$gpu" ]; then
  echo "skipped: no GPU here (nvidia-smi finds none)"
  exit 77
fi
mkdir -p "$output" && output=$(cd "$output" && pwd) || exit 1
capability=$(echo "$gpu" | cut -d, -f2 | tr -d ' .')
toolkit=$(dirname "$nvcc")
failed=0

# Only the kernels and what measures them, which needs nlohmann/json and OpenSSL's headers but no network simulator.
say "building for $gpu"
mkdir -p "$build"
cmake -S "$source_directory" -B "$build" -DCMAKE_BUILD_TYPE=Release -DSPARSCALE_ONLY_KERNELS=ON -DSPARSCALE_BENCHMARKS=OFF -DSPARSCALE_CUDA=ON -DCMAKE_CUDA_COMPILER="$nvcc" \
  -DCMAKE_CUDA_ARCHITECTURES="$capability" > "$output/build.log" 2>&1 &&
  timeout "$(left)" cmake --build "$build" -j "$(nproc)" >> "$output/build.log" 2>&1
code=$?
if [ $code -ne 0 ]; then
  tail -20 "$output/build.log"
  [ $code -eq 124 ] && echo "failed: the build was not done in eight minutes; it goes on from there when this is run again" ||
    echo "failed: the build; see $output/build.log"
  exit 1
fi
built_after=$((SECONDS - started))

say "tests"
timeout "$(left)" "$build/kernels/sparscale_gpu_check" > "$output/tests.log" 2>&1
code=$?
[ $code -eq 77 ] && { tail -1 "$output/tests.log"; exit 77; }
[ $code -eq 0 ] || failed=1
tests=$(tail -1 "$output/tests.log")
say "$tests"

sanitizer=$(command -v compute-sanitizer || ls "$toolkit/compute-sanitizer" 2> /dev/null | head -1)
checks="compute-sanitizer: not installed here"
if [ -n "$sanitizer" ]; then
  checks=""
  for tool in memcheck racecheck; do
    limit=$(left)
    [ "$limit" -gt 90 ] && limit=90
    say "compute-sanitizer --tool $tool"
    timeout "$limit" "$sanitizer" --tool "$tool" --error-exitcode 9 "$build/kernels/sparscale_gpu_check" 5000 > "$output/$tool.log" 2>&1
    case $? in
      0) checks="$checks$tool: clean; " ;;
      124) checks="$checks$tool: stopped after $limit s; " ;;
      *) checks="$checks$tool: FAILED (see $tool.log); "; failed=1 ;;
    esac
  done
fi

say "measuring"
timeout "$(left)" "$build/kernels/sparscale_kernel_measure" "$output/profile.json" 100000000 2> "$output/measure.log"
[ $? -eq 0 ] || failed=1

torch="torch: none in this Python"
if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2> /dev/null && [ -s "$output/profile.json" ]; then
  torch=""
  # The largest first: the goals are about those.
  for elements in 67108864 100000000 16777216 1048576; do
    [ "$(left)" -gt 45 ] || { torch="$torch
no time left for $elements elements"; continue; }
    say "torch, $elements elements"
    torch="$torch
$(timeout "$(left)" python3 "$source_directory/kernels/bench/torch_ratio.py" --device cuda --profile "$output/profile.json" \
      --elements "$elements" --densities 0.1,0.01,0.001,0.0001 2>&1)"
  done
fi

say "summary"
{
  echo "# GPU check"
  echo
  echo "- $gpu; $("$nvcc" --version | tail -2 | head -1); $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  echo "- tests: $tests"
  echo "- $checks"
  echo "- built in $built_after s, all in $((SECONDS - started)) s"
  echo
  python3 "$source_directory/kernels/bench/gpu_summary.py" "$output/profile.json"
  echo
  echo '```'
  echo "$torch"
  echo '```'
} > "$output/summary.md" || failed=1
cat "$output/summary.md"
exit $failed
