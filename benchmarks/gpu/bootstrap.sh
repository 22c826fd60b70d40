# Sourced by the scripts beside it: where things lie, a Python that has what training needs, and work in slices.
#
# WORK      folder for everything that is made (default runs/gpu); a script that is started again goes on there
# OUT       folder that the results are copied to, small files only (default: results in WORK)
# LIMIT_S   seconds after which a script pauses, with exit code 75 (default 480)
# TINY=1    everything at a size that a CPU does in a minute or two
# PYTHON    default: .venv/bin/python if there is one, else python3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
WORK=${WORK:-runs/gpu} LIMIT_S=${LIMIT_S:-480} TINY=${TINY:-0}
OUT=${OUT:-$WORK/out}
if [[ -z ${PYTHON:-} ]]; then
    PYTHON=python3
    if [[ -x .venv/bin/python ]]; then PYTHON=.venv/bin/python; fi
fi
export PYTHON
mkdir -p "$WORK/done" "$WORK/results" "$OUT"

# What a machine with PyTorch and timm may lack; wheels.sh fetches it where there is a network.
if [[ -d data/site ]]; then export PYTHONPATH=$PWD/data/site${PYTHONPATH:+:$PYTHONPATH}; fi
if ! "$PYTHON" -c 'import imagehash, msgspec, pillow_heif, simplejpeg, tyro' 2>/dev/null; then
    if ! compgen -G 'data/wheels/*.whl' >/dev/null; then
        echo "error: $PYTHON lacks what training needs; fetch data/wheels with benchmarks/gpu/wheels.sh" >&2
        exit 1
    fi
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --upgrade --target data/site data/wheels/*.whl
    export PYTHONPATH=$PWD/data/site${PYTHONPATH:+:$PYTHONPATH}
fi

left() { echo $((LIMIT_S - SECONDS)); }

# step NAME COMMAND...: runs a command that has not been done yet. What runs when the time is over is told to stop, and
# the script ends with 75; started again, it goes on with that command.
step() {
    local name=$1 code=0 began=$SECONDS
    shift
    if [[ -e $WORK/done/$name ]]; then return; fi
    if (($(left) < 5)); then pause "$name"; fi
    echo "== $name, $(left) s left"
    timeout --signal=TERM --kill-after=50 "$(left)" "$@" || code=$?
    case $code in
        0) echo "$((SECONDS - began)) s" >"$WORK/done/$name" ;;
        75 | 124 | 137) pause "$name" ;;
        *) exit "$code" ;;
    esac
}

pause() {
    echo "paused at $1: start the same command again" >&2
    exit 75
}

# herbarium NAME SIZE_PX PICTURES_PER_CLASS [flags]: draws plants and packs them to $WORK/NAME-packed.
herbarium() {
    local folder=$WORK/$1
    # Drawing cannot be taken up again in the middle, so it begins anew.
    # shellcheck disable=SC2016 # the inner shell expands them
    step "$1-drawn" bash -c 'rm -rf "$0" && exec "$@"' "$folder-raw" "$PYTHON" training/prepare.py herbarium \
        "$folder-raw" --size-px "$2" --pictures-per-class "$3" --workers "$(nproc)" "${@:4}"
    step "$1-packed" "$PYTHON" training/prepare.py sources "$folder-raw/data_herbarium.toml" --root "$folder-raw" \
        --out "$folder" --shards "$folder-packed" --workers "$(nproc)"
}

# Two hundred species: what is read in the speed comparison, and one of the two data sets of the ablation.
herbarium_200() {
    if [[ $TINY == 1 ]]; then
        herbarium herbarium-200 48 8 --num-inaturalist 3 --num-plantnet 3 --num-house 2 --num-shared 1
    else
        herbarium herbarium-200 420 20 --num-inaturalist 120 --num-plantnet 60 --num-house 20 --num-shared 20
    fi
}

copy_results() { cp -r "$WORK/results/." "$OUT/"; }
trap copy_results EXIT
