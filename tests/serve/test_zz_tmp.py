import time, pytest, sys
import tests.serve.test_application as ta
from tests.cluster import *
@pytest.mark.parametrize("k", range(12))
def test_dc(application, k):
    body = {"prompt": "the fox", "max_tokens": 200, "stream": True, "ignore_eos": True, "n": 2}
    engine = serve.get_deployment_handle(ENGINE_DEPLOYMENT, APPLICATION_NAME)
    for i in range(20):
        t=time.time()
        try: engine.report.remote().result(timeout_s=5)
        except Exception as e: print("EXC", type(e), e)
        d=time.time()-t
        if d>0.3: print("slow", k, i, d)
    t=time.time()
    ta.test_disconnect_mid_stream_frees_every_block(application.http(), application)
    if time.time()-t>2: print("slow test", k, time.time()-t)
