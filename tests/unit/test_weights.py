"""Which files of a checkpoint hold the model, and whether they are whole."""

from pathlib import Path

from raveval.weights import fault_of, weight_files
from tests.checkpoints import write_weights


class TestWeights:
    def test_are_whole_when_as_long_as_their_header_says(self, tmp_path: Path) -> None:
        write_weights(tmp_path)
        assert fault_of(tmp_path) is None
        n_bytes = (tmp_path / "model.safetensors").stat().st_size
        write_weights(tmp_path, cut=1)
        assert fault_of(tmp_path) == f"model.safetensors has {n_bytes - 1} of {n_bytes} bytes"
        for beginning in (4, 40):
            write_weights(tmp_path, cut=n_bytes - beginning)
            assert "is no safetensors file" in str(fault_of(tmp_path))
        (tmp_path / "model.safetensors").unlink()
        assert "no weights" in str(fault_of(tmp_path))
        (tmp_path / "config.json").unlink()
        assert "no config.json" in str(fault_of(tmp_path))

    def test_are_whole_when_each_shard_is_there(self, tmp_path: Path) -> None:
        write_weights(tmp_path)
        (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00002.safetensors")
        assert fault_of(tmp_path) == "model-00002-of-00002.safetensors is missing"
        write_weights(tmp_path)
        (tmp_path / "model.safetensors").rename(tmp_path / "model-00002-of-00002.safetensors")
        assert fault_of(tmp_path) is None
        index = tmp_path / "model.safetensors.index.json"
        index.write_text('{"weight_map": {"a": "other.safetensors"}}')
        assert str(fault_of(tmp_path)).startswith("other.safetensors is missing")
        index.write_text('{"weight_m')
        assert "is no index" in str(fault_of(tmp_path))

    def test_are_not_the_state_of_the_training(self, tmp_path: Path) -> None:
        for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state_0.pth"):
            (tmp_path / name).touch()
        assert not weight_files(tmp_path)
        for name in ("consolidated.00.pth", "model.gguf", "pytorch_model.bin"):
            (tmp_path / name).touch()
        assert len(weight_files(tmp_path)) == 3
