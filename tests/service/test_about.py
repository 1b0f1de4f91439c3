"""What a service tells of its model."""

from __future__ import annotations

import pytest

from hypic_sdk.errors import UnknownModel
from hypic_sdk.offline import LocalHypic
from hypic_sdk.service.about import AboutModels
from tests.service.services import saying, service


def test_there_is_one_model():
    about = AboutModels(service(saying("x")))
    [model] = about.list().data
    assert model.id == "tiny"
    assert model.hypic.chat
    assert about.retrieve("tiny") == model
    with pytest.raises(UnknownModel, match="'tiny'"):
        about.retrieve("other")


def test_a_model_without_a_chat_template():
    [model] = AboutModels(service(saying("x"), template=None)).list().data
    assert not model.hypic.chat


def test_local_hypic_tells_its_window():
    with LocalHypic() as local:
        [model] = local.models.list().data
        assert model.hypic.max_context_tokens == 8192
        assert model.id == local.service.model_name
