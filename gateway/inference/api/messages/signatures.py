"""What stands for the signature of thoughts that no provider has signed: the API demands one."""

UNSIGNED = "YWlvLXVuc2lnbmVk"
