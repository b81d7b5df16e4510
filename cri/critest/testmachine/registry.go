package testmachine

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/bowline-k8s/bowline/cri/fake"
)

// Names of the images that Registry serves.
const (
	ImageName = fake.TestImage + ":1"
	PauseName = "pause:1"
)

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// Registry returns an OCI registry, for pulls only, with the test image and a pause image, both
// built from one static binary.
func Registry(binary []byte, arch string) (http.Handler, error) {
	layer, err := layerOf(binary)
	if err != nil {
		return nil, err
	}
	r := registry{blobs: map[string]blob{}, tags: map[string]string{}}
	if err := r.add(ImageName, layer, arch, nil); err != nil {
		return nil, err
	}
	return r, r.add(PauseName, layer, arch, []string{"/" + fake.TestImage, "wait"})
}

type blob struct {
	kind string
	data []byte
}

type registry struct {
	blobs map[string]blob   // by digest
	tags  map[string]string // "name:tag" to digest
}

func (r registry) put(kind string, data []byte) map[string]any {
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(data))
	r.blobs[digest] = blob{kind, data}
	return map[string]any{"mediaType": kind, "digest": digest, "size": len(data)}
}

func (r registry) add(ref string, layer []byte, arch string, entrypoint []string) error {
	layerDesc := r.put(layerType, layer)
	config, err := json.Marshal(map[string]any{
		"architecture": arch, "os": "linux",
		"config": map[string]any{"Entrypoint": entrypoint, "Env": []string{"PATH=/"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{layerDesc["digest"]}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": r.put(configType, config), "layers": []any{layerDesc},
	})
	if err != nil {
		return err
	}
	r.tags[ref] = r.put(manifestType, manifest)["digest"].(string)
	return nil
}

func layerOf(binary []byte) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: fake.TestImage, Mode: 0o755, Size: int64(len(binary))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(binary); err != nil {
		return nil, err
	}
	err := w.Close()
	return b.Bytes(), err
}

func (r registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	if len(parts) < 4 || parts[0] != "v2" {
		if req.URL.Path == "/v2/" {
			return
		}
		http.NotFound(w, req)
		return
	}
	name, kind, want := strings.Join(parts[1:len(parts)-2], "/"), parts[len(parts)-2], parts[len(parts)-1]
	if tagged, ok := r.tags[name+":"+want]; ok && kind == "manifests" {
		want = tagged
	}
	b, ok := r.blobs[want]
	if !ok {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", b.kind)
	w.Header().Set("Docker-Content-Digest", want)
	w.Header().Set("Content-Length", fmt.Sprint(len(b.data)))
	if req.Method != http.MethodHead {
		_, _ = w.Write(b.data)
	}
}
