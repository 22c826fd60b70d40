#!/usr/bin/env bash
# Trains under torchrun, and exits with code 75 (EX_TEMPFAIL) if a scheduler should start the run again.
#
#   deploy/torchrun.sh RUN [torchrun's options] -- RECIPE [train.py's flags]
#
# RUN is the run's folder, on a file system that all machines share. If it holds a checkpoint, the run resumes.
#
# train.py exits with 75 after SIGTERM once it has saved a checkpoint, but torchrun turns every failure into 1. So this
# script returns 75 itself if it received SIGTERM, or if the run's log says that the run was interrupted.
set -uo pipefail

usage="usage: deploy/torchrun.sh RUN [torchrun's options] -- RECIPE [train.py's flags]"
if [[ $# -lt 1 || $1 == -* ]]; then
    echo "$usage" >&2
    exit 64
fi
run=$1
shift
options=()
while [[ $# -gt 0 && $1 != -- ]]; do
    options+=("$1")
    shift
done
if [[ $# -lt 2 ]]; then
    echo "$usage" >&2
    exit 64
fi
shift # the two dashes

log=$run/log.jsonl
lines_before=$(cat "$log" 2>/dev/null | wc -l)
# Seconds between SIGTERM and SIGKILL. The default, 30, can be too short for a last step and a checkpoint.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-240}

# Forwards SIGTERM to torchrun, which forwards it to its workers; a shell does not forward signals by itself.
stopping=0
child=
stop() {
    stopping=1
    if [[ -n $child ]]; then kill -TERM "$child" 2>/dev/null; fi
}
trap stop TERM

# The two dashes keep torchrun from parsing flags of the program that look like its own, such as --run.
torchrun "${options[@]}" -- training/train.py "$@" --run "$run" --auto-resume &
child=$!
if [[ $stopping -eq 1 ]]; then stop; fi # the signal came while torchrun was starting
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do # a signal ends `wait` early
    wait "$child"
    code=$?
done

if [[ $code -ne 0 ]]; then
    last=$(tail -n "+$((lines_before + 1))" "$log" 2>/dev/null |
        grep -oE '"event":"(start|resume|interrupted|diverged|end)"' | tail -n 1)
    if [[ $stopping -eq 1 || $last == '"event":"interrupted"' ]]; then
        exit 75
    fi
fi
exit "$code"
