"""Target format `openvino_ir`: OpenVINO IR."""
