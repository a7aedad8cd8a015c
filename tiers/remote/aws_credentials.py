"""AWS credentials, for servers of Bedrock: those of variables, profiles, single sign-on and roles, by botocore."""

import os
import re
from typing import Any

import httpx

from tiers.catalog.tier_spec import RemoteSpec
from tiers.errors import TierUnavailableError

MISSING_EXTRA = (
    "AWS credentials need botocore, which is not installed: pip install 'aio-gateway[providers]', or set "
    "AWS_BEARER_TOKEN_BEDROCK to an API key of Bedrock's"
)
MISSING_CREDENTIALS = (
    "no AWS credentials found: set AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "AWS_PROFILE after `aws sso login`, or run where a role is attached"
)
_REGION = re.compile(r"bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.")


class AwsCredentials:
    """Finds credentials once, and signs requests to a server of Bedrock's in its region."""

    def __init__(self, base_url: str) -> None:
        self._credentials: Any = None
        region = _REGION.search(base_url)
        self._region = region[1] if region else os.environ.get("AWS_REGION", "us-east-1")

    def find(self) -> None:
        """See `Credentials.find`."""
        if self._credentials is not None:
            return
        try:
            # Imported here: botocore takes 15 MB, and an extra of the package has it.
            from botocore.exceptions import BotoCoreError
            from botocore.session import Session
        except ImportError as error:
            raise TierUnavailableError(MISSING_EXTRA) from error
        try:
            self._credentials = Session().get_credentials()
        except BotoCoreError as error:
            raise TierUnavailableError(f"AWS credentials cannot be read: {error}") from error
        if self._credentials is None:
            raise TierUnavailableError(MISSING_CREDENTIALS)

    def signature(self, request: httpx.Request) -> list[tuple[bytes, bytes]]:
        """See `Credentials.signature`: AWS Signature Version 4."""
        self.find()
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        headers = {name: request.headers[name] for name in ("host", "content-type")}
        unsigned = AWSRequest(request.method, str(request.url), headers=headers, data=request.read())
        try:
            SigV4Auth(self._credentials, "bedrock", self._region).add_auth(unsigned)
        except BotoCoreError as error:
            raise TierUnavailableError(f"AWS credentials cannot be renewed: {error}") from error
        signed = ("Authorization", "X-Amz-Date", "X-Amz-Security-Token")
        return [(name.encode(), unsigned.headers[name].encode()) for name in signed if name in unsigned.headers]


def credentials_of(remote: RemoteSpec) -> AwsCredentials:
    """Return those for requests to a server."""
    return AwsCredentials(remote.base_url)
