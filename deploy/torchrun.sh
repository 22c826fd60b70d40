#!/usr/bin/env bash
# Trains under torchrun, and ends with 75 (EX_TEMPFAIL) when the run is to be started again by a scheduler.
#
#   deploy/torchrun.sh RUN [torchrun's options] -- RECIPE [train.py's flags]
#
# RUN is the run's folder; of several machines, one that all of them see. The run goes on there if it holds a checkpoint.
#
# train.py ends with 75 when it was stopped by SIGTERM and has saved, but torchrun turns every failure into 1. So this
# script says 75 itself: when it was asked to stop, or when the run's diary says that another machine was.
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
# torchrun kills what has not ended so many seconds after SIGTERM; its own 30 are short for a last step and a checkpoint.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-240}

# Asks the workers to stop. torchrun would pass the signal on by itself; this shell, which the scheduler knows, would not.
asked=0
child=
stop() {
    asked=1
    if [[ -n $child ]]; then kill -TERM "$child" 2>/dev/null; fi
}
trap stop TERM

# Two dashes, since torchrun reads flags of the program that look like its own, --run among them.
torchrun "${options[@]}" -- training/train.py "$@" --run "$run" --auto-resume &
child=$!
if [[ $asked -eq 1 ]]; then stop; fi # it came while torchrun was being started
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do # the signal ends `wait` before torchrun has ended
    wait "$child"
    code=$?
done

if [[ $code -ne 0 ]]; then
    last=$(tail -n "+$((lines_before + 1))" "$log" 2>/dev/null |
        grep -oE '"event":"(start|resume|interrupted|diverged|end)"' | tail -n 1)
    if [[ $asked -eq 1 || $last == '"event":"interrupted"' ]]; then
        exit 75
    fi
fi
exit "$code"
