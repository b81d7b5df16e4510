package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/google/go-cmp/cmp"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/linkpull/oci"
)

var program = Program{Path: "/lifeline", Binary: []byte("\x7fELF program"), Platform: oci.Platform{OS: "linux",
	Architecture: "aarch64"}}

// TestMake reads the image as a runtime does.
func TestMake(t *testing.T) {
	i, err := Make(program)
	testutil.Must(t, err)
	testutil.Must(t, i.Layers[0].Verify(i.Layer))
	z, err := gzip.NewReader(bytes.NewReader(i.Layer))
	testutil.Must(t, err)
	plain, err := io.ReadAll(z)
	testutil.Must(t, err)
	if oci.Sum(plain) != i.DiffIDs[0] {
		t.Errorf("the layer has the digest %s, and the configuration %s", oci.Sum(plain), i.DiffIDs[0])
	}
	r := tar.NewReader(bytes.NewReader(plain))
	h, err := r.Next()
	testutil.Must(t, err)
	data, err := io.ReadAll(r)
	testutil.Must(t, err)
	if h.Name != "lifeline" || h.Mode != 0o555 || h.Uid != 0 || h.ModTime.Unix() != 0 || !bytes.Equal(data,
		program.Binary) {
		t.Errorf("%+v with %q", h, data)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("more than one file: %v", err)
	}
	var c oci.Config
	testutil.Must(t, json.Unmarshal(i.ConfigBytes, &c))
	want := oci.Config{Created: "1970-01-01T00:00:00Z", OS: "linux", Architecture: "arm64",
		Config: oci.RuntimeConfig{Entrypoint: []string{"/lifeline"}, WorkingDir: "/"},
		RootFS: oci.RootFS{Type: "layers", DiffIDs: i.DiffIDs}}
	if d := cmp.Diff(want, c); d != "" {
		t.Error(d)
	}
}

// TestDigestsAreStable: an image that changed without its program would be written to each host again.
func TestDigestsAreStable(t *testing.T) {
	a, err := Make(program)
	testutil.Must(t, err)
	again := program
	again.Binary = slices.Clone(program.Binary)
	b, err := Make(again)
	testutil.Must(t, err)
	if a.Target.Digest != b.Target.Digest {
		t.Errorf("%s, then %s", a.Target.Digest, b.Target.Digest)
	}
	if a.DiffIDs[0] != "sha256:cc59318c6e369e208ef7282c35f9a4a91be1d34f9e9b159b7b873b722568db90" {
		t.Errorf("the unpacked layer is %s: it differs from that of earlier versions", a.DiffIDs[0])
	}
	for name, change := range map[string]func(*Program){
		"binary":   func(p *Program) { p.Binary = []byte("other") },
		"platform": func(p *Program) { p.Platform.Architecture = "amd64" },
		"path":     func(p *Program) { p.Path = "/other" },
		"label":    func(p *Program) { p.Labels = map[string]string{"a": "b"} },
	} {
		changed := program
		change(&changed)
		c, err := Make(changed)
		testutil.Must(t, err)
		if c.Target.Digest == a.Target.Digest {
			t.Errorf("another %s gives the same image", name)
		}
	}
}

func TestMakeRefuses(t *testing.T) {
	for name, change := range map[string]func(*Program){
		"relative path": func(p *Program) { p.Path = "lifeline" },
		"directory":     func(p *Program) { p.Path = "/bin/lifeline" },
		"dots":          func(p *Program) { p.Path = "/.." },
		"root":          func(p *Program) { p.Path = "/" },
		"no binary":     func(p *Program) { p.Binary = nil },
		"no platform":   func(p *Program) { p.Platform = oci.Platform{} },
	} {
		changed := program
		change(&changed)
		if _, err := Make(changed); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestName(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3":                   "bowline.io/lifeline:v1.2.3",
		"v1.2.3+k3s1":              "bowline.io/lifeline:v1.2.3-k3s1",
		"":                         "bowline.io/lifeline:none",
		"..":                       "bowline.io/lifeline:none",
		"+dirty":                   "bowline.io/lifeline:dirty",
		strings.Repeat("x", 200):   "bowline.io/lifeline:" + strings.Repeat("x", 128),
		"(devel) 2026-01-02 12:00": "bowline.io/lifeline:devel--2026-01-02-12-00",
	} {
		got := Name("lifeline", version)
		if got != want {
			t.Errorf("%q: %s, want %s", version, got, want)
		}
		if _, err := reference.ParseNamed(got); err != nil {
			t.Errorf("%s: %v", got, err)
		}
	}
}
