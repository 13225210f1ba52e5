#!/usr/bin/env bash
# A real Slurm on this one machine: starts munged, slurmctld and slurmd in a scratch folder, runs a small sweep as jobs and compares
# results.csv with a local run, byte by byte. Needs root and the packages slurm-wlm and munge; else it is skipped (exit 77).
# Usage: SPARSCALE_PROGRAM=/path/to/sparscale bash tests/cluster/slurm.sh
set -euo pipefail
program=${SPARSCALE_PROGRAM:?}
skip() { echo "SKIPPED: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "not root, which slurmd must be"
PATH=$PATH:/usr/sbin:/sbin
for tool in munged slurmctld slurmd sbatch sinfo squeue scancel; do command -v $tool > /dev/null || skip "no $tool"; done

scratch=$(mktemp -d "${TMPDIR:-/tmp}/sparscale-slurm-XXXXXX")
chmod 755 "$scratch"
started=()
clean_up() {
  status=$?
  trap - EXIT
  if [ $status != 0 ]; then tail -n 20 "$scratch"/*.log 2> /dev/null || true; fi
  for ((i = ${#started[@]} - 1; i >= 0; --i)); do kill "${started[i]}" 2> /dev/null || true; done
  for process in "${started[@]}"; do wait "$process" 2> /dev/null || true; done
  rm -rf "$scratch"
  exit $status
}
trap clean_up EXIT

mkdir -m 700 "$scratch/munge"
mkdir -p "$scratch/state" "$scratch/spool"
head -c 1024 /dev/urandom > "$scratch/munge/key"
chmod 400 "$scratch/munge/key"
munged --foreground --force --key-file="$scratch/munge/key" --socket="$scratch/munge.socket" --pid-file="$scratch/munge/pid" \
  --seed-file="$scratch/munge/seed" --log-file="$scratch/munge/log" > "$scratch/munged.log" 2>&1 &
started+=($!)
host=$(hostname -s)
port=$((20000 + $$ % 20000))
cat > "$scratch/slurm.conf" << CONF
ClusterName=scratch
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$scratch/munge.socket
CryptoType=crypto/munge
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd.log
MailProg=/bin/true
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$scratch/slurm.conf
for _ in $(seq 50); do [ -S "$scratch/munge.socket" ] && break; sleep 0.1; done
slurmctld -D -i -f "$SLURM_CONF" > "$scratch/slurmctld.out.log" 2>&1 &
started+=($!)
sleep 1
slurmd -D -f "$SLURM_CONF" > "$scratch/slurmd.out.log" 2>&1 &
started+=($!)
for _ in $(seq 100); do sinfo -h -o %T 2> /dev/null | grep -q idle && break; sleep 0.3; done
sinfo -h -o %T | grep -q idle || { echo "the node does not come up: $(sinfo -h -o '%T %E' 2>&1)"; exit 1; }
echo "Slurm $(sinfo --version | cut -d' ' -f2) is up on $host"

cat > "$scratch/e.json" << 'JSON'
{"schema_version": 1, "name": "cluster", "trace": "digits-cnn-8w", "sparsifier": ["dense", "topk", "micro", "exdyna"], "density": [0.01, 0.1],
 "workers": [2, 8, 16], "warmup_iterations": 2, "iterations": 3, "replicates": 2,
 "platform": ["crossbar-100g", "nvlink8-ib"], "profile": "cpu-epyc-zen5-1t"}
JSON
"$program" run "$scratch/e.json" --out "$scratch/out" --slurm --no-figures --tasks 5 -- --time=10
for _ in $(seq 600); do
  [ -z "$(squeue -h)" ] && break
  sleep 0.5
done
[ -z "$(squeue -h)" ] || { squeue; scancel --state=PENDING; scancel --state=RUNNING; echo "the jobs do not end"; exit 1; }
"$program" status "$scratch/out" || { tail -n 5 "$scratch"/out/slurm/*.log; exit 1; }
"$program" run "$scratch/e.json" --out "$scratch/local" --no-figures > "$scratch/local.log" 2>&1
cmp "$scratch/out/results.csv" "$scratch/local/results.csv"
cmp "$scratch/out/summary.json" "$scratch/local/summary.json"
[ "$(ls "$scratch/out/runs" | wc -l)" = "$(ls "$scratch/local/runs" | wc -l)" ]
[ -z "$(find "$scratch/out" -name '*.tmp.*')" ] || { echo "a temporary file is left"; exit 1; }
echo "results.csv of $(($(wc -l < "$scratch/out/results.csv") / 3)) runs is the same as that of a local run, byte by byte"
