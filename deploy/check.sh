#!/usr/bin/env bash
# Checks the files of this folder with the tools for operators that are installed, and names those that are missing.
#
# deploy/check.sh    ends with 1 if a tool refuses a file
set -uo pipefail
cd "$(dirname "$0")/service" || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
code=0

# check TOOL INSTALL COMMAND: runs a shell line if the tool is there.
check() {
    if ! command -v "$1" >/dev/null; then
        echo "not checked, no $1: $2"
    elif ! (eval "$3") >"$scratch/said" 2>&1; then
        echo "refused: $3"
        cat "$scratch/said"
        code=1
    fi
}

rules='apt install prometheus'
check promtool "$rules" 'promtool check rules prometheus/alerts.yml'
check promtool "$rules" 'promtool test rules prometheus/alerts_test.yml'
sed '/^name:/d' compose.yaml >"$scratch/compose.yml" # older ones do not know it
compose="docker-compose --project-directory . --file $scratch/compose.yml"
check docker-compose 'apt install docker-compose' "
    SITE=x $compose --file compose.corrections.yaml --file compose.https.yaml config && $compose config"
sed "s/listen 80;/listen 127.0.0.1:18080;/" nginx.conf >"$scratch/nginx.conf"
check nginx 'apt install nginx-light' 'nginx -t -c $scratch/nginx.conf -g "pid $scratch/pid; error_log $scratch/log;"'

# Each overlay as it is, and with each component; the ingress wants a file of API keys.
cp -r kubernetes "$scratch/tree"
echo 'app 00' >"$scratch/tree/components/ingress/keys.txt"
for overlay in cpu gpu; do
    for component in none kubernetes/components/*; do
        name=$overlay-${component##*/} place=$scratch/tree/overlays/$overlay-${component##*/}
        cp -r "$scratch/tree/overlays/$overlay" "$place"
        if [[ $component != none ]]; then echo "components: [../../components/${component##*/}]" >>"$place/kustomization.yaml"; fi
        # shellcheck disable=SC2016 # check expands them
        check kubectl https://kubernetes.io/docs/tasks/tools 'kubectl kustomize $place >$scratch/$name.yaml'
    done
done
cp ../kubernetes/*.yaml "$scratch"
for version in 1.27 1.34; do # the oldest that README names, and a recent one
    check kubeconform https://github.com/yannh/kubeconform "kubeconform -strict -kubernetes-version $version.0 $scratch/*.yaml"
    check kubernetes-validate 'pip install kubernetes-validate' "kubernetes-validate --strict -k $version $scratch/*.yaml"
done
exit $code
