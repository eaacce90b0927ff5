"""The routes of the simulated server, and all that is not an answer of the model.

Must never schedule or generate: that is `completions.py` and what it uses.
"""

import time

from aiohttp import web

from serving.completions import Completions
from serving.driver import EngineDriver
from serving.faults import FaultError, Faults
from serving.metrics import Metrics
from serving.protocol import ApiError
from serving.received import ReceivedLog
from serving.responses import check_key, errors, json_response, mark_simulated, not_found, read_json
from serving.settings import SimSettings

VERSION = "0.32.0-forebay-simulator"
_MAX_BODY_BYTES = 64 * 2**20


class Api:
    """The routes of one server. `app` is ready to be served."""

    def __init__(
        self, settings: SimSettings, driver: EngineDriver, metrics: Metrics, faults: Faults
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._metrics = metrics
        self._faults = faults
        self._log = ReceivedLog()
        self._started_at = int(time.time())
        completions = Completions(settings, driver, faults, self._log)
        self.app = web.Application(middlewares=[errors], client_max_size=_MAX_BODY_BYTES)
        self.app.on_response_prepare.append(mark_simulated)
        router = self.app.router
        router.add_get("/health", self._empty)
        router.add_route("*", "/ping", self._empty)
        router.add_get("/version", self._version)
        router.add_get("/metrics", self._show_metrics)
        router.add_get("/v1/models", self._models)
        router.add_post("/v1/{call:.*}", completions.handle)
        router.add_post("/inference/v1/abort_requests", self._abort)
        router.add_get("/sim/faults", self._show_faults)
        router.add_post("/sim/faults", self._set_faults)
        router.add_get("/sim/requests", self._show_requests)
        router.add_delete("/sim/requests", self._clear_requests)
        router.add_route("*", "/{path:.*}", self._not_found)

    async def _empty(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return json_response({"version": VERSION})

    async def _show_metrics(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics.text(), headers=headers)

    async def _models(self, request: web.Request) -> web.Response:
        check_key(request, self._settings.api_key)
        data = [
            {
                "id": name,
                "object": "model",
                "created": self._started_at,
                "owned_by": "forebay-simulator",
                "root": self._settings.models[0],
                "parent": None,
                "max_model_len": self._settings.max_model_len,
            }
            for name in self._settings.models
        ]
        return json_response({"object": "list", "data": data})

    async def _abort(self, request: web.Request) -> web.Response:
        """End the named requests with what they have. An id that is not known is a no-op."""
        check_key(request, self._settings.api_key)
        if not self._settings.abort_enabled:
            raise ApiError(403, "Aborting requests is not enabled on this server.")
        body = await read_json(request)
        ids = body.get("request_ids") if isinstance(body, dict) else None
        if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
            raise ApiError(400, "request_ids: want a list of strings.", "request_ids")
        if not self._faults.ignores_abort():
            self._driver.abort(ids)
        return web.Response()

    async def _show_faults(self, request: web.Request) -> web.Response:
        return json_response(self._faults.describe())

    async def _set_faults(self, request: web.Request) -> web.Response:
        """Replace the faults; answers what is on now."""
        try:
            self._faults.replace(await read_json(request))
        except FaultError as error:
            raise ApiError(400, str(error)) from None
        return json_response(self._faults.describe())

    async def _show_requests(self, request: web.Request) -> web.Response:
        return json_response(self._log.describe())

    async def _clear_requests(self, request: web.Request) -> web.Response:
        self._log.clear()
        return json_response(self._log.describe())

    async def _not_found(self, request: web.Request) -> web.Response:
        return not_found()
