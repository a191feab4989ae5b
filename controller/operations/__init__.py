"""Operations of the controller: pure functions of an image and a request, to records and a response.

Imports controller/metadata, controller/config and controller/extension.py.
"""
