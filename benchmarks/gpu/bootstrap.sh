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
# GIT_COMMIT  for a copy without .git, such as on a lent machine: its commit, which each result names
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
WORK=${WORK:-runs/gpu} LIMIT_S=${LIMIT_S:-480} TINY=${TINY:-0}
OUT=${OUT:-$WORK/out}
if [[ -z ${PYTHON:-} ]]; then
    PYTHON=python3
    if [[ -x .venv/bin/python ]]; then PYTHON=.venv/bin/python; fi
fi
if [[ -z ${GIT_COMMIT:-} && ! -e .git ]]; then
    echo "error: this copy has no .git, and each result names its commit: set GIT_COMMIT to it" >&2
    exit 1
fi
mkdir -p "$WORK/done" "$OUT"
if [[ -n ${STATE:-} && ! -e $WORK/done/state ]]; then
    tar -C "$WORK" -xzf "$STATE"
    touch "$WORK/done/state"
fi

# Packages that a machine with PyTorch and timm may lack; wheels.sh downloads them.
if [[ -d data/site ]]; then export PYTHONPATH=$PWD/data/site${PYTHONPATH:+:$PYTHONPATH}; fi
needed='msgspec, pillow_heif, rich, simplejpeg, tyro'
if compgen -G 'data/wheels/litestar-*.whl' >/dev/null; then needed+=', litestar, multidict'; fi
if ! "$PYTHON" -c "import $needed" 2>/dev/null; then
    if ! compgen -G 'data/wheels/*.whl' >/dev/null; then
        echo "error: $PYTHON lacks packages for training; download data/wheels with benchmarks/gpu/wheels.sh" >&2
        exit 1
    fi
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --upgrade --target data/site data/wheels/*.whl
    export PYTHONPATH=$PWD/data/site${PYTHONPATH:+:$PYTHONPATH}
fi

left() { echo $((LIMIT_S - SECONDS)); }

# step NAME COMMAND...: runs a command unless it is done. When the time is over, the command gets SIGTERM and the script
# ends with 75; started again, it runs that command again. train.py and sweep.py then resume; others start anew, with
# the whole time if they are the first that is not done.
step() {
    local name=$1 code=0 given
    shift
    if [[ -e $WORK/done/$name ]]; then return; fi
    given=$(left)
    if ((given < 2)); then pause "$name"; fi
    echo "== $name, $given s left"
    timeout --preserve-status --signal=TERM --kill-after=50 "$given" "$@" || code=$?
    if ((code == 0)); then
        echo "$((given - $(left))) s" >"$WORK/done/$name"
    elif ((code == 75 || $(left) <= 0)); then
        pause "$name"
    else
        exit "$code" # it failed
    fi
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
    mapfile -t files < <(cd "$WORK" && for pattern in "${remembered[@]}"; do compgen -G "$pattern" || true; done)
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
    step "$1-drawn" bash -c 'rm -rf "$0" && exec "$@"' "$raw" "$PYTHON" training/prepare.py drawn "$raw" \
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
