#!/bin/bash
# Makes every number of results/readout on one GPU, part by part or all of them:
#   bash results/readout/run.sh mnist fashion cifar text body speed regularization
# Data and encoder are looked for in the folder that CONCEPTORS_DATA names (docs/experiments.md).
# JOBS runs go side by side; started again, finished seeds are kept.
set -u
jobs_at_once=${JOBS:-4}
out=${OUT_FOLDER:-results/readout}
python=${PYTHON:-python3}
mkdir -p "$out"

run() { # a folder, and what to run
    name=$1
    shift
    while (($(jobs -rp | wc -l) >= jobs_at_once)); do wait -n; done
    "$python" -m conceptors run "$@" --seeds 5 --device cuda --out "$out/$name" \
        >>"$out/$name.log" 2>&1 || echo "$name failed: see $out/$name.log" >&2 &
}
bench() { # alone on the GPU, as times and memory are measured
    wait
    "$python" -m conceptors bench "$@" --size full --device cuda --out "$out/$1" \
        >>"$out/bench-$1.log" 2>&1 || echo "bench $1 failed: see $out/bench-$1.log" >&2
}
patches() { # size, grid and number of patches
    echo --set features=patches --set patch="$1" --set grid="$2" --set filters="$3"
}
mnist=$(patches 8 3 1000)
fashion=$(patches 6 3 1000)
cifar=$(patches 6 2 4000)
cosines="--method readout --set readout.lift=10000"
relus="$cosines --set readout.activation=relu --set readout.shape=0"
raw="--method readout --set readout.lift=0"
likely="$raw --set readout.scores=likelihood"
peers="--method ncm --method slda --method klda --method ranpac --method acil \
    --set klda.lift=5000 --set ranpac.lift=10000 --set acil.lift=10000"

for part in "${@:-mnist}"; do
    case $part in
    mnist)
        for tasks in 2 5 10; do
            run mnist-$tasks disjoint-mnist --tasks $tasks $cosines
            run mnist-$tasks-patches disjoint-mnist --tasks $tasks $likely $mnist
        done
        wait
        run mnist-10 disjoint-mnist --tasks 10 $peers
        run mnist-10-patches disjoint-mnist --tasks 10 $peers $mnist
        ;;
    fashion)
        run fashion-10 disjoint-fashion --tasks 10 $cosines
        run fashion-10-patches disjoint-fashion --tasks 10 $raw $fashion
        run fashion-joint disjoint-fashion --tasks 1 --method joint --set joint.epochs=20 \
            --set joint.rate=0.4
        wait
        run fashion-10-patches disjoint-fashion --tasks 10 $peers $fashion
        ;;
    cifar)
        run cifar100 split-cifar100 --single-head $likely $cifar
        wait
        run cifar100 split-cifar100 --single-head $peers $cifar
        ;;
    text)
        run clinc150 clinc150 $relus
        run clinc150-last clinc150 --layers last $relus
        wait
        run clinc150 clinc150 $peers
        run clinc150-last clinc150 --layers last $peers
        ;;
    body) bench body ;;
    speed) bench readout ;;
    regularization) bench regularization ;;
    *) echo "unknown part $part: mnist, fashion, cifar, text, body, speed or regularization" >&2 ;;
    esac
done
wait
