"""Target format `tflite`: LiteRT flatbuffers, written by our own lowering."""
