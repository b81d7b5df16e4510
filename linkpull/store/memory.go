package store

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/bowline-k8s/bowline/linkpull/oci"
)

// Memory is a Source of layers that are in memory, such as that of Bowline's own image (linkpull/build).
type Memory map[oci.Digest][]byte

// Open returns a layer from offset on.
func (m Memory) Open(_ context.Context, d oci.Descriptor, offset int64) (io.ReadCloser, error) {
	data, ok := m[d.Digest]
	if !ok || offset > int64(len(data)) {
		return nil, fmt.Errorf("layer %s from byte %d on is not in memory", d.Digest, offset)
	}
	return io.NopCloser(bytes.NewReader(data[offset:])), nil
}
