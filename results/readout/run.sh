#!/bin/sh
# Makes every number of results/readout on one GPU, part by part or all of them:
#   sh results/readout/run.sh images peers text speed
# Data and encoder are looked for in the folder that CONCEPTORS_DATA names (docs/experiments.md).
# Runs go side by side; started again, finished seeds are kept.
set -u
out=${OUT_FOLDER:-results/readout}
python=${PYTHON:-python3}
mkdir -p "$out"

run() { # a folder, and what to run
    name=$1
    shift
    "$python" -m conceptors run "$@" --seeds 5 --device cuda --out "$out/$name" \
        >>"$out/$name.log" 2>&1 || echo "$name failed: see $out/$name.log" >&2
}
bench() {
    "$python" -m conceptors bench "$@" --size full --device cuda --out "$out/$1" \
        >>"$out/bench-$1.log" 2>&1 || echo "bench $1 failed: see $out/bench-$1.log" >&2
}
patches() { # size, grid and number of patches; the readout takes them as they are
    echo --set features=patches --set patch="$1" --set grid="$2" --set filters="$3"
}
mnist=$(patches 8 3 1000)
fashion=$(patches 6 3 1000)
cifar=$(patches 6 2 1600)
cosines="--set readout.lift=10000"
peers="--method ncm --method slda --method klda --method ranpac --method acil \
    --set klda.lift=5000 --set ranpac.lift=10000 --set acil.lift=10000"

for part in "${@:-images}"; do
    case $part in
    images)
        for tasks in 2 5 10; do
            run mnist-$tasks disjoint-mnist --tasks $tasks --method readout $cosines &
            run mnist-$tasks-patches disjoint-mnist --tasks $tasks --method readout $mnist \
                --set readout.lift=0 &
        done
        run fashion-10 disjoint-fashion --tasks 10 --method readout $cosines &
        run fashion-10-patches disjoint-fashion --tasks 10 --method readout $fashion \
            --set readout.lift=0 &
        run cifar100 split-cifar100 --single-head --method readout $cifar \
            --set readout.lift=20000 &
        run fashion-joint disjoint-fashion --tasks 1 --method joint --set joint.epochs=20 \
            --set joint.rate=0.4 &
        ;;
    peers)
        run mnist-10 disjoint-mnist --tasks 10 $peers &
        run mnist-10-patches disjoint-mnist --tasks 10 $peers $mnist &
        run fashion-10-patches disjoint-fashion --tasks 10 $peers $fashion &
        run cifar100 split-cifar100 --single-head $peers $cifar &
        ;;
    text)
        run clinc150 clinc150 --method readout --set readout.lift=10000 \
            --set readout.activation=relu $peers &
        run clinc150-last clinc150 --layers last --method readout --set readout.lift=10000 \
            --set readout.activation=relu $peers &
        bench body &
        ;;
    speed) bench readout ;;
    regularization) bench regularization & ;;
    *) echo "unknown part $part: images, peers, text, speed or regularization" >&2 ;;
    esac
    wait
done
