from __future__ import annotations

import json
from pathlib import Path

from hypic_sdk.demo import reader_path
from hypic_sdk.server.services import ServiceFactory
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.parse import parse
from tests.service.fake_worker import FakeWorker

ASK = {"messages": [{"role": "user", "content": "Where does Ada live?"}]}


def test_a_model_folder_decides_how_its_replies_are_sampled(tmp_path: Path) -> None:
    for path in reader_path().glob("tokenizer*"):
        (tmp_path / path.name).symlink_to(path)
    wish = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    (tmp_path / "generation_config.json").write_text(json.dumps(wish))
    for namespace in ("", "other"):
        service = ServiceFactory.from_folder(tmp_path, FakeWorker([]), model_name="m")(namespace)
        silent = service.prepare_chat(parse(ChatRequest, ASK)).message.sampling
        assert (silent.temperature, silent.top_k, silent.top_p) == (0.6, 20, 0.95)
        asked = service.prepare_chat(parse(ChatRequest, {**ASK, "temperature": 0}))
        assert asked.message.sampling.temperature == 0
