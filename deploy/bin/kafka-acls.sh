#!/bin/sh
exec barnabas acls "$@"
