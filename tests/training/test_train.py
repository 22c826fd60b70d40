import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch

from models.errors import CheckpointError, DataError, RecipeError
from tests.make import ran, require_ended
from tests.training.small import (
    RECIPE,
    ROOT,
    command,
    draw,
    events,
    losses_by_step,
    make_taxonomy,
    prepare_flowers,
    prepare_folder,
    require_one_line,
    require_same_steps,
    run_main,
    run_training,
    write_data,
)
from tests.waiting import wait_until
from training.engine.checkpoint import read_checkpoint
from training.engine.loop import Trainer
from training.train import main, parse, train

LONG = ("--batch-size", 2, "--checkpoint-every-steps", 2, "--log-every-steps", 1)  # an epoch of 15 steps


@pytest.mark.parametrize(
    ("limit", "said", "file"), [(1, "nothing was validated", "last.pt"), (3, "best validation top-1 ", "best.pt")]
)
def test_a_run_says_whether_it_was_validated(limit, said, file, data, tmp_path, capsys):
    train(command(data, tmp_path / "run", "--batch-size", 8, "--epochs", 2, "--max-steps", limit))
    *_, last, following = capsys.readouterr().out.splitlines()
    assert f"--checkpoint {tmp_path / 'run' / file} " in following
    assert (tmp_path / "run" / file).exists()
    assert said in last
    assert ("validation top-1" in last) == (limit == 3)


def wait_for_step(process, run, step):
    def is_there():
        return (run / "log.jsonl").exists() and any(event["step"] >= step for event in events(run, "losses"))

    wait_until(is_there, process)
    assert process.poll() is None, process.stderr.read()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_killed_program_resumes_with_the_same_losses(tmp_path):
    data = prepare_flowers(tmp_path, per_class=40)
    flags = (*LONG, "--data", data, "--workers", 1)  # an epoch of 48 steps
    arguments = [sys.executable, str(ROOT / "training" / "train.py"), str(RECIPE), *map(str, flags)]
    arguments += ["--run", str(tmp_path / "run")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for_step(process, tmp_path / "run", 5)
        helpers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    require_ended(helpers)
    position = read_checkpoint(tmp_path / "run" / "last.pt").position
    assert position["pictures"] > 0
    assert position["step"] % 2 == 0
    ended = ran(*arguments, "--resume", env=environment)
    assert ended.returncode == 0, ended.stderr
    assert [event["step"] for event in events(tmp_path / "run", "resume")] == [position["step"]]
    assert "training/evaluate.py --checkpoint" in ended.stdout
    require_same_steps(tmp_path / "run", run_training(data, tmp_path / "whole", *LONG))


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("number", range(20))
def test_a_run_that_waits_for_pictures_is_saved_by_each_way_to_stop_its_process_group(number, data, tmp_path):
    run, kind = tmp_path / "run", (signal.SIGTERM, signal.SIGINT)[number % 2]
    flags = (RECIPE, "--data", data, "--run", run, "--workers", 2, "--epochs", 500)
    arguments = [sys.executable, "-m", "tests.training.slow_loader", *map(str, flags)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        wait_for_step(process, run, 2)
        time.sleep(0.05 * number)  # at another point of a step
        os.killpg(process.pid, kind)  # to the loader processes, too, as schedulers, `timeout` and terminals do
        _, errors = process.communicate(timeout=400)
    assert process.returncode == (75 if kind == signal.SIGTERM else 130), errors
    step = events(run, "interrupted")[-1]["step"]
    assert read_checkpoint(run / "last.pt").position["step"] == step >= 2
    assert "--resume continues" in errors


def test_a_second_process_in_the_folder_of_a_run_is_refused_and_changes_nothing(data, tmp_path, monkeypatch):
    run, files = Trainer.run, []

    def run_beside_another(trainer, *limits):
        before = [path.read_bytes() for path in sorted(tmp_path.glob("*.json*"))]
        with pytest.raises(DataError, match="another process trains in this folder"):
            run_training(data, tmp_path, "--restart", "--seed", 7)
        files.append((before, [path.read_bytes() for path in sorted(tmp_path.glob("*.json*"))]))
        return run(trainer, *limits)

    monkeypatch.setattr(Trainer, "run", run_beside_another)
    run_training(data, tmp_path, "--max-steps", 1)
    monkeypatch.undo()
    assert [before == after for before, after in files] == [True]
    run_training(data, tmp_path, "--resume", "--max-steps", 1)  # the lock ends with the run


def test_deterministic_kernels_are_chosen_before_the_first_step(data, tmp_path, monkeypatch):
    chosen, run = [], Trainer.run

    def note(trainer, *limits):
        benchmark = trainer.engine.recipe.hardware.cudnn_benchmark
        chosen.append((torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic, benchmark))
        return run(trainer, *limits)

    monkeypatch.setattr(Trainer, "run", note)
    try:
        run_training(data, tmp_path, "--deterministic", "--max-steps", 1)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False
    assert chosen == [(True, True, False)]


def test_no_file_of_a_run_has_the_password_of_an_address(data, tmp_path, capfd):
    run_training(data, tmp_path, "--shards", "ftp://me:secret@garden/shards", "--max-steps", 1)
    assert read_checkpoint(tmp_path / "last.pt").recipe["data"]["shards"] == "ftp://garden/shards"
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"secret" not in written + "".join(capfd.readouterr()).encode()


def test_a_finished_run_resumed_is_still_finished(finished_run, data, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    run_training(data, run, "--resume")
    assert read_checkpoint(run / "last.pt").position == read_checkpoint(finished_run / "last.pt").position


def test_a_changed_learning_rate_takes_effect_at_the_resume(data, tmp_path):
    run = run_training(data, tmp_path / "run", "--max-steps", 7)
    run_training(data, run, "--resume", "--backbone-lr", 1e-5, "--head-lr", 2e-5, "--max-steps", 1)
    whole = run_training(data, tmp_path / "whole", "--max-steps", 8)
    slowed, usual = (events(folder, "losses")[-1]["lr"] for folder in (run, whole))
    assert slowed == pytest.approx({"backbone": usual["backbone"] / 100, "head": usual["head"] / 50})


def test_a_moving_average_that_starts_at_a_resume_starts_at_the_trained_weights(data, tmp_path):
    run = run_training(data, tmp_path / "run", "--epochs", 1, "--ema-decay", 0)
    before = read_checkpoint(run / "last.pt").network
    run_training(data, run, "--resume", "--epochs", 2, "--ema-decay", 0.9999, "--max-steps", 1)
    ema = read_checkpoint(run / "last.pt").ema
    assert all((value - ema[name]).abs().max() < 0.01 for name, value in before.items() if name.endswith("weight"))


@pytest.mark.parametrize(
    ("flag", "value", "problem"),
    [
        ("--batch-size", 3, "batch_size"),
        ("--accumulate", 2, "accumulate"),
        ("--seed", 5, "seed"),
        ("--order", "blocks", "order"),
        ("--sampling", "square_root", "sampling"),
        ("--architecture", "test_resnet", "another network"),
    ],
)
def test_a_resume_with_other_batches_or_another_network_is_refused(flag, value, problem, finished_run, data):
    with pytest.raises(CheckpointError, match=problem):
        run_training(data, finished_run, "--resume", flag, value)


@pytest.mark.parametrize(
    ("part", "key", "value"), [("pictures", "mean", (0.5, 0.5, 0.5)), ("network", "frozen_stages", 2)]
)
def test_a_resume_of_a_run_with_a_former_setting_is_refused(part, key, value, finished_run, data, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    for path in run.glob("*.pt"):
        content = torch.load(path, weights_only=True)
        content["recipe"][part][key] = value
        torch.save(content, path)
    with pytest.raises(CheckpointError, match=f"another {key}"):
        run_training(data, run, "--resume")


def test_a_resume_on_other_data_is_refused(finished_run, pictures, tmp_path):
    prepare_folder(pictures, tmp_path / "other", seed=9)
    before = (finished_run / "last.pt").read_bytes()
    with pytest.raises(CheckpointError, match="other data"):
        run_training(tmp_path / "other", finished_run, "--resume")
    assert (finished_run / "last.pt").read_bytes() == before


def test_first_weights_follow_from_the_seed(data, tmp_path):
    runs = {name: ("--seed", seed, "--max-steps", 1) for name, seed in (("a", 0), ("b", 0), ("c", 1))}
    first = {name: losses_by_step(run_training(data, tmp_path / name, *flags))[1] for name, flags in runs.items()}
    heads = {name: read_checkpoint(tmp_path / name / "last.pt").network["timm_model.conv_stem.weight"] for name in runs}
    assert first["a"] == first["b"]
    assert torch.equal(heads["a"], heads["b"])
    assert not torch.allclose(heads["a"], heads["c"], atol=0.01)


def test_a_resume_without_a_checkpoint_is_an_error(data, tmp_path):
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        run_training(data, tmp_path / "run", "--resume")


def test_a_resume_skips_a_damaged_checkpoint_with_a_warning(data, tmp_path):
    run = run_training(data, tmp_path / "run", *LONG, "--max-steps", 5)
    os.truncate(run / "last.pt", 5000)
    run_training(data, run, *LONG, "--resume", "--max-steps", 2)
    assert [event["step"] for event in events(run, "resume")] == [4]
    assert any("cannot be read" in event["note"] for event in events(run, "note"))
    assert losses_by_step(run).keys() == {*range(1, 7)}


def test_a_resume_is_refused_if_every_checkpoint_is_damaged(finished_run, data, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    for path in run.glob("*.pt"):
        path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="cannot be read"):
        run_training(data, run, "--resume")


def test_a_restart_by_torchrun_resumes_without_a_flag(data, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "this launch")
    run = run_training(data, tmp_path / "run", *LONG, "--max-steps", 3)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    run_training(data, run, *LONG, "--max-steps", 1)
    assert [event["step"] for event in events(run, "resume")] == [3]


def test_a_restart_by_torchrun_does_not_resume_a_run_of_another_launch(finished_run, data, tmp_path, monkeypatch):
    run = shutil.copytree(finished_run, tmp_path / "run")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "this launch")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(RecipeError, match="already holds a run"):
        run_training(data, run)
    run_training(data, run, "--restart", "--max-steps", 1)
    assert read_checkpoint(run / "last.pt").position["step"] == 1


def test_the_batch_size_may_change_if_a_step_keeps_its_pictures(finished_run, data, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    run_training(data, run, "--resume", "--epochs", 3, "--batch-size", 2, "--accumulate", 2, "--max-steps", 1)
    run_training(data, run, "--resume", "--epochs", 3, "--batch-size", 4, "--max-steps", 1)
    run_training(data, run, "--resume", "--epochs", 3, "--batch-size", 2, "--accumulate", 2, "--max-steps", 1)
    assert [len(losses_by_step(run)[step]) for step in (15, 16, 17)] == [2, 1, 2]
    assert read_checkpoint(run / "last.pt").position["pictures"] == 12
    with pytest.raises(CheckpointError, match="batch_size"):
        run_training(data, run, "--resume", "--epochs", 3, "--batch-size", 3)


def test_a_folder_that_holds_a_run_is_refused_without_a_flag(finished_run, data, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    with pytest.raises(RecipeError, match="--resume to continue it, --restart to start over"):
        run_training(data, run)
    run_training(data, run, "--restart", "--max-steps", 1)
    assert read_checkpoint(run / "last.pt").position["step"] == 1
    assert {path.name for path in run.glob("*.pt")} == {"last.pt", "step-000000001.pt"}


def test_a_checkpoint_holds_its_data_its_device_and_the_resolved_recipe(finished_run, data, manifest):
    checkpoint = read_checkpoint(finished_run / "last.pt")
    assert tuple(checkpoint.output_keys) == manifest.taxonomy.output_keys
    assert checkpoint.manifest_sha256 == manifest.sha256
    assert checkpoint.trained_on.startswith("CPU, ")
    kept = json.loads((finished_run / "recipe.json").read_text())
    stored = json.loads(json.dumps(checkpoint.recipe))
    normalization = {name: stored["pictures"].pop(name) for name in ("mean", "std", "interpolation")}
    assert normalization["interpolation"] == "bicubic"
    assert stored == kept
    assert kept["data"]["data"] == str(data)
    assert kept["schedule"]["weight_decay"] == 0.01


def test_a_checkpoint_says_what_was_loaded_before_the_first_step(finished_run, data, tmp_path):
    assert read_checkpoint(finished_run / "last.pt").initial_weights == "all weights start at random"
    run = run_training(data, tmp_path / "run", "--weights", finished_run / "last.pt", "--max-steps", 1)
    run_training(data, run, "--resume", "--weights", "imagenet", "--max-steps", 1)  # nothing is loaded from there
    assert read_checkpoint(run / "last.pt").initial_weights == "weights from last.pt"


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("efficientnetb4", "efficientnet_b4"),
        ("efficientnet_b4.ra2_in1", "efficientnet_b4.ra2_in1k"),  # no such published weights
        ("tf_efficientnetv2_b0_in1k", "tf_efficientnetv2_b0.in1k"),
        ("swin_base_patch4_window7_224_in22k", "swin_base"),  # an old name, without a record of its input
    ],
)
def test_a_misspelt_architecture_is_refused_with_the_nearest_name(given, nearest, data, tmp_path):
    with pytest.raises(RecipeError, match=f"try {nearest}"):
        run_training(data, tmp_path / "run", "--architecture", given)
    assert not (tmp_path / "run").exists()


def test_cuda_without_a_gpu_is_a_one_line_error_and_leaves_no_files(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = ("mini_8gb", "--data", data, "--run", tmp_path / "run")
    code, output = run_main(main, capsys, *arguments)
    assert code == 1
    require_one_line(output, "bad_recipe")
    assert "--device cpu" in output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_missing_picture_is_a_one_line_error(workers, tmp_path, capsys):
    data = prepare_flowers(tmp_path, per_class=8)
    shutil.rmtree(tmp_path / "flowers" / "Buttercup")
    arguments = (RECIPE, "--data", data, "--run", tmp_path / "run", "--workers", workers)
    code, output = run_main(main, capsys, *arguments)
    assert code == 1
    require_one_line(output[output.index("error (") :], "bad_data")
    assert "Buttercup" in output


def test_help_explains_every_setting_with_its_default(capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert ended.value.code == 0
    output = " ".join(capsys.readouterr().out.split())
    for text in ("--backbone-lr", "3e-05", "--forecast", "Pictures in a batch"):
        assert text in output


def test_the_reference_recipe_trains_the_reference_network(tmp_path):
    taxonomy = make_taxonomy(5337)
    rows = []
    for number in range(8):
        draw("gold", "ellipse", number).save(tmp_path / f"{number}.jpg")
        key = taxonomy.output_keys[number * 667]
        rows.append((f"{number}.jpg", key, "train" if number < 7 else "validation"))
    data = write_data(tmp_path / "data", tmp_path, rows, taxonomy)
    flags = ("--weights", "none", "--picture-px", 32, "--serve-px", 32, "--batch-size", 2, "--workers", 0)
    run = tmp_path / "run"
    train(command(data, run, *flags, "--device", "cpu", "--log-every-steps", 1, "--max-steps", 2, recipe="b4_5337"))
    checkpoint = read_checkpoint(run / "last.pt")
    counted = sum(group["params"].__len__() for group in checkpoint.optimizer["param_groups"])
    moments = [state["exp_avg"] for state in checkpoint.optimizer["state"].values()]
    assert (len(moments), sum(moment.numel() for moment in moments)) == (counted, 27_117_857)
    assert [len(losses) for losses in losses_by_step(run).values()] == [1, 1]
    place = {"epoch": 0, "pictures": 4, "step": 2, "best": -1.0, "best_loss": math.inf, "validated": 0}
    assert checkpoint.position | {"seconds": 0} == place | {"seconds": 0}
    assert len(checkpoint.output_keys) == 5337
    for path in run.glob("*.pt"):
        path.unlink()  # 325 MB that pytest would keep
