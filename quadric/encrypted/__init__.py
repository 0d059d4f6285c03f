"""Predictions on data that the one who predicts cannot read: polynomial networks under encryption.

`check` says whether a network is a polynomial and what it costs, `prepare` brings it into shape,
`compile` makes a client with the secret key and a server without it. The cryptography (CKKS) is
Microsoft SEAL's, through TenSEAL: pip install 'quadric[encrypted]'.
"""

from quadric.encrypted.checking import Check as Check
from quadric.encrypted.checking import Prepared as Prepared
from quadric.encrypted.checking import check as check
from quadric.encrypted.checking import prepare as prepare
from quadric.encrypted.pair import Client as Client
from quadric.encrypted.pair import RangeWarning as RangeWarning
from quadric.encrypted.pair import Server as Server
from quadric.encrypted.pair import compile as compile
from quadric.encrypted.pair import load_client as load_client
from quadric.encrypted.pair import load_server as load_server
from quadric.encrypted.parameters import Plan as Plan
from quadric.models.activations import Square as Square
