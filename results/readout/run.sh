#!/bin/sh
# Makes every number of results/readout on one GPU: sh results/readout/run.sh [image|text ...]
# Data and encoder are looked for in the folder that CONCEPTORS_DATA names; see docs/experiments.md.
# Runs go side by side; started again, finished seeds are kept.
set -u
out=${OUT_FOLDER:-results/readout}
python=${PYTHON:-python3}
peers="--method ncm --method slda --method klda --method ranpac --method acil"
run() {
    name=$1
    shift
    mkdir -p "$out"
    "$python" -m conceptors run "$@" --seeds 5 --device cuda --out "$out/$name" >"$out/$name.log" 2>&1 ||
        echo "$name failed: see $out/$name.log" >&2
}

for part in "${@:-image}"; do
    case $part in
    mnist)
        for tasks in 2 5 10; do
            run "mnist-$tasks" disjoint-mnist --tasks $tasks --method readout $peers \
                --set lift=10000 --set klda.lift=5000 &
            run "mnist-$tasks-patches" disjoint-mnist --tasks $tasks --method readout $peers \
                --set features=patches --set filters=1000 --set patch=8 --set lift=10000 \
                --set klda.lift=5000 --set readout.lift=0 &
        done
        ;;
    fashion)
        run fashion disjoint-fashion --tasks 10 --method readout $peers --method joint \
            --set readout.lift=10000 --set klda.lift=5000 --set ranpac.lift=10000 \
            --set acil.lift=10000 --set joint.epochs=20 --set joint.rate=0.4 &
        run fashion-patches disjoint-fashion --tasks 10 --method readout $peers \
            --set features=patches --set filters=1000 --set patch=6 --set lift=10000 \
            --set klda.lift=5000 --set readout.lift=0 &
        ;;
    cifar)
        run cifar100 split-cifar100 --single-head --method readout $peers \
            --set features=patches --set filters=1600 --set patch=6 --set grid=2 \
            --set lift=10000 --set klda.lift=5000 &
        ;;
    text)
        run clinc150 clinc150 --method readout $peers --set lift=10000 --set klda.lift=5000 \
            --set readout.activation=relu &
        run clinc150-last clinc150 --layers last --method readout $peers --set lift=10000 \
            --set klda.lift=5000 --set readout.activation=relu &
        "$python" -m conceptors bench body --size full --device cuda --out "$out" \
            >"$out/body.log" 2>&1 &
        ;;
    *) echo "unknown part $part: mnist, fashion, cifar or text" >&2 ;;
    esac
done
wait
