"""Registered segments and warm jobs of a service in this process, with the client's calls."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import batched, islice
from typing import Any, Literal, final

from hypic_sdk.errors import HypicError, JobNotFound, from_payload
from hypic_sdk.service import Service, WarmJob
