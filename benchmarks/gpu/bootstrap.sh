# shellcheck shell=bash
# Sourced by the scripts in this folder: finds the folders and Python, installs missing packages, and runs steps that can
# be paused.
#
# WORK      folder for all files (default runs/gpu); a script that is started again resumes there
# OUT       folder that the results are copied to when a script ends or pauses (default: out in WORK)
# LIMIT_S   seconds after which a script pauses with exit code 75 (default 480)
# STATE     state.tar.gz from the OUT of another machine; finished measurements in it are not repeated
# TINY=1    small sizes, for a few minutes on a CPU
# PYTHON    default: .venv/bin/python if there is one, else python3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
WORK=${WORK:-runs/gpu} LIMIT_S=${LIMIT_S:-480} TINY=${TINY:-0}
OUT=${OUT:-$WORK/out}
if [[ -z ${PYTHON:-} ]]; then
    PYTHON=python3
    if [[ -x .venv/bin/python ]]; then PYTHON=.venv/bin/python; fi
fi
mkdir -p "$WORK/done" "$WORK/tried" "$OUT"
if [[ -n ${STATE:-} && ! -e $WORK/done/state ]]; then
    tar -C "$WORK" -xzf "$STATE"
    touch "$WORK/done/state"
fi

# Packages that a machine with PyTorch and timm may lack; wheels.sh downloads them.
if [[ -d data/site ]]; then export PYTHONPATH=$PWD/data/site${PYTHONPATH:+:$PYTHONPATH}; fi
if ! "$PYTHON" -c 'import imagehash, msgspec, pillow_heif, simplejpeg, tyro' 2>/dev/null; then
    if ! compgen -G 'data/wheels/*.whl' >/dev/null; then
        echo "error: $PYTHON lacks packages for training; download data/wheels with benchmarks/gpu/wheels.sh" >&2
        exit 1
    fi
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --upgrade --target data/site data/wheels/*.whl
    export PYTHONPATH=$PWD/data/site${PYTHONPATH:+:$PYTHONPATH}
fi

left() { echo $((LIMIT_S - SECONDS)); }

# step NAME COMMAND...: runs a command unless it is done. When the time is over, the command gets SIGTERM and the script
# ends with 75; started again, it runs that command again, which resumes its own work.
step() { run_step resumes "$@"; }

# whole_step NAME COMMAND...: the same for a command that cannot resume. It is started again only with more time than last
# time; if it already had all of LIMIT_S, the script fails.
whole_step() { run_step restarts "$@"; }

# study NAME SWEEP ARGUMENTS...: a sweep of training/benchmark.py, which pauses in time to write its table.
study() {
    local page_s=40
    if [[ ! -e $WORK/done/$1 ]] && (($(left) < 2 * page_s)); then pause "$1"; fi
    step "$1" "$PYTHON" training/benchmark.py "$2" --stop-after-s "$(($(left) - page_s))" "${@:3}"
}

num_begun=0 # commands since the script was started
run_step() {
    local kind=$1 name=$2 code=0 given
    shift 2
    if [[ -e $WORK/done/$name ]]; then return; fi
    given=$(left)
    if ((given < 2)); then pause "$name"; fi
    if ((given <= $(cat "$WORK/tried/$name" 2>/dev/null || echo 0))); then
        if ((num_begun == 0)); then fail_for_time "$name" "$given"; fi
        pause "$name"
    fi
    echo "== $name, $given s left"
    timeout --preserve-status --signal=TERM --kill-after=50 "$given" "$@" || code=$?
    num_begun=$((num_begun + 1))
    if ((code == 0)); then
        echo "$((given - $(left))) s" >"$WORK/done/$name"
        return
    fi
    if ((code != 75 && $(left) > 0)); then exit "$code"; fi # it failed
    if [[ $kind == restarts && $code != 75 ]]; then
        echo "$given" >"$WORK/tried/$name"
        if ((num_begun == 1)); then fail_for_time "$name" "$given"; fi
    fi
    pause "$name"
}

fail_for_time() {
    echo "error: $1 does not finish within $2 s and cannot resume; raise LIMIT_S" >&2
    exit 1
}

pause() {
    echo "paused at $1: start the same command again" >&2
    exit 75
}

# keep FOLDER PATTERN...: files of WORK that are copied to OUT/FOLDER when the script ends.
kept=()
keep() {
    local pattern
    for pattern in "${@:2}"; do kept+=("$1" "$pattern"); done
}

# remember PATTERN...: files of WORK that are packed into OUT/state.tar.gz then.
remembered=()
remember() { remembered+=("$@"); }

copy_results() {
    local at files
    for ((at = 0; at < ${#kept[@]}; at += 2)); do
        mapfile -t files < <(compgen -G "$WORK/${kept[at + 1]}")
        if ((${#files[@]})); then
            mkdir -p "$OUT/${kept[at]}"
            cp "${files[@]}" "$OUT/${kept[at]}/"
        fi
    done
    mapfile -t files < <(cd "$WORK" && for pattern in "${remembered[@]}"; do compgen -G "$pattern"; done)
    if ((${#files[@]})); then tar -C "$WORK" -czf "$OUT/state.tar.gz" "${files[@]}"; fi
}
trap copy_results EXIT

# drawn NAME SIZE_PX PICTURES VALIDATION_SHARE SPECIES: draws plants and packs them to $WORK/NAME-packed.
drawn() {
    local raw=$WORK/$1-raw
    draw_folder "$1" "$2" "$3" --species "$5"
    step "$1-packed" "$PYTHON" training/prepare.py folder "$raw" --validation-share "$4" --out "$WORK/$1" \
        --shards "$WORK/$1-packed" --workers "$(nproc)"
}

# draw_folder NAME SIZE_PX PICTURES FLAGS: draws plants into class folders below $WORK/NAME-raw.
draw_folder() {
    local raw=$WORK/$1-raw
    # shellcheck disable=SC2016 # the inner shell expands them
    whole_step "$1-drawn" bash -c 'rm -rf "$0" && exec "$@"' "$raw" "$PYTHON" training/prepare.py drawn "$raw" \
        --size-px "$2" --pictures "$3" "${@:4}"
}

# drawn_200 NAME SIZE_PX PICTURES VALIDATION_SHARE: the same with 200 species.
drawn_200() {
    if [[ $TINY == 1 ]]; then
        drawn "$1" 48 8 "$4" 8
    else
        drawn "$@" 200
    fi
}

# need_weights: finds the weights of script 2 (or WEIGHTS) as $weights.
need_weights() {
    weights=${WEIGHTS:-$WORK/weights.safetensors}
    if [[ ! -e $weights ]]; then
        echo "error: no weights at $weights: run benchmarks/gpu/2_scratch.sh first, or set WEIGHTS" >&2
        exit 1
    fi
}
