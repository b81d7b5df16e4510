package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

var (
	layerA = Describe(LayerGzipType, []byte("layer a"))
	layerB = Describe(LayerGzipType, []byte("layer b"))
)

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	testutil.Must(t, err)
	return data
}

// documents returns a configuration and a manifest of these layers.
func documents(t testing.TB, layers ...Descriptor) (config, manifest []byte) {
	t.Helper()
	c := Config{OS: "linux", Architecture: "amd64", RootFS: RootFS{Type: "layers", DiffIDs: []Digest{}}}
	for _, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, Sum([]byte("unpacked "+string(l.Digest))))
	}
	config = marshal(t, c)
	described := Describe(ConfigType, config)
	return config, marshal(t, Document{SchemaVersion: 2, MediaType: ManifestType, Config: &described, Layers: layers})
}

func TestParseDigest(t *testing.T) {
	good := string(Sum(nil))
	for text, want := range map[string]error{
		good:                                  nil,
		strings.ToUpper(good):                 ErrUnsupported, // of the algorithm SHA256
		algorithm + strings.ToUpper(good[7:]): ErrInvalid,
		good[:len(good)-1]:                    ErrInvalid,
		good + "00":                           ErrInvalid,
		good[:len(good)-1] + "g":              ErrInvalid,
		"sha512:" + strings.Repeat("0", 128):  ErrUnsupported,
		"":                                    ErrInvalid,
		"../../../../etc/passwd":              ErrInvalid,
		algorithm + strings.Repeat("/", 64):   ErrInvalid,
		"md5:" + strings.Repeat("a very long", 9): ErrUnsupported,
	} {
		if _, err := ParseDigest(text); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
}

// TestParse breaks a manifest and an index in each way that must be refused.
func TestParse(t *testing.T) {
	_, manifest := documents(t, layerA, layerB)
	entry := Describe(ManifestType, manifest)
	index := marshal(t, Document{SchemaVersion: 2, MediaType: IndexType, Manifests: []Descriptor{entry}})
	many := Document{SchemaVersion: 2, Manifests: slices.Repeat([]Descriptor{entry}, MaxManifests+1)}
	replaced := func(data []byte, old, by string) []byte {
		if !strings.Contains(string(data), old) {
			t.Fatalf("%s is not in %s", old, data)
		}
		return []byte(strings.Replace(string(data), old, by, 1))
	}
	config := `"config":{"mediaType":"application/vnd.oci.image.config.v1+json"`
	size := fmt.Sprintf(`"size":%d`, layerA.Size)
	for name, c := range map[string]struct {
		mediaType string
		data      []byte
		want      error
	}{
		"manifest":              {ManifestType, manifest, nil},
		"index":                 {IndexType, index, nil},
		"type with a parameter": {ManifestType + "; charset=utf-8", manifest, nil},
		"without its type":      {ManifestType, replaced(manifest, `"mediaType":"`+ManifestType+`",`, ""), nil},
		"of another type":       {IndexType, manifest, ErrInvalid},
		"of no type":            {"", manifest, ErrUnsupported},
		"of schema 1": {"application/vnd.docker.distribution.manifest.v1+prettyjws", manifest,
			ErrUnsupported},
		"schema version 1": {ManifestType, replaced(manifest, `"schemaVersion":2`, `"schemaVersion":1`),
			ErrUnsupported},
		"web page":                 {ManifestType, []byte("<html>"), ErrInvalid},
		"list":                     {ManifestType, []byte("[]"), ErrInvalid},
		"empty":                    {ManifestType, nil, ErrInvalid},
		"large":                    {ManifestType, make([]byte, MaxDocument+1), ErrTooLarge},
		"manifest with manifests":  {ManifestType, replaced(manifest, config, `"manifests":[{}],`+config), ErrInvalid},
		"index with layers":        {IndexType, replaced(index, `"manifests"`, `"layers":[{}],"manifests"`), ErrInvalid},
		"index with configuration": {IndexType, replaced(index, `"manifests"`, `"config":{},"manifests"`), ErrInvalid},
		"without configuration":    {ManifestType, replaced(manifest, `"config"`, `"confog"`), ErrInvalid},
		"artifact": {ManifestType, replaced(manifest, ConfigType, "application/vnd.oci.empty.v1+json"),
			ErrUnsupported},
		"digest":               {ManifestType, replaced(manifest, string(layerA.Digest), "sha256:0"), ErrInvalid},
		"digest of a manifest": {IndexType, replaced(index, string(entry.Digest), "sha256:0"), ErrInvalid},
		"negative size":        {ManifestType, replaced(manifest, size, `"size":-1`), ErrInvalid},
		"no size":              {ManifestType, replaced(manifest, size, `"size":0`), ErrInvalid},
		"layer of a PiB":       {ManifestType, replaced(manifest, size, `"size":1125899906842624`), ErrTooLarge},
		"fractional size":      {ManifestType, replaced(manifest, size, `"size":1.5`), ErrInvalid},
		"layer without a type": {ManifestType, replaced(manifest, `"layers":[{"mediaType":"`+LayerGzipType+`"`,
			`"layers":[{"mediaType":""`), ErrInvalid},
		"many layers": {ManifestType, func() []byte {
			_, m := documents(t,
				slices.Repeat([]Descriptor{layerA}, MaxLayers+1)...)
			return m
		}(), ErrTooLarge},
		"most layers": {ManifestType, func() []byte {
			_, m := documents(t,
				slices.Repeat([]Descriptor{layerA}, MaxLayers)...)
			return m
		}(), nil},
		"many manifests": {IndexType, marshal(t, many), ErrTooLarge},
	} {
		if _, err := Parse(c.mediaType, c.data); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestNewImage(t *testing.T) {
	config, manifest := documents(t, layerA, layerB, layerA)
	target := Describe(ManifestType, manifest)
	img, err := NewImage(target, nil, 0, manifest, config)
	testutil.Must(t, err)
	if img.ID() != Sum(config) || len(img.Layers) != 3 || len(img.Distinct()) != 2 {
		t.Errorf("%+v", img)
	}
	if want := int64(len(config)+len(manifest)) + layerA.Size + layerB.Size; img.Size() != want {
		t.Errorf("size %d, want %d", img.Size(), want)
	}
	index := marshal(t, Document{SchemaVersion: 2, MediaType: IndexType,
		Manifests: []Descriptor{Describe(ManifestType, config), target}})
	top := Describe(IndexType, index)
	img, err = NewImage(top, index, 1, manifest, config)
	testutil.Must(t, err)
	if img.Target.Digest != top.Digest || img.Manifest.Digest != target.Digest {
		t.Errorf("%+v", img)
	}
	other, otherManifest := documents(t, layerA)
	bad := Config{RootFS: RootFS{Type: "layers"}}
	fewer := marshal(t, bad)
	bad.RootFS.Type = "squashfs"
	strange := marshal(t, bad)
	with := func(config []byte) (Descriptor, []byte) {
		d := Describe(ConfigType, config)
		m := marshal(t, Document{SchemaVersion: 2, Config: &d, Layers: []Descriptor{layerA}})
		return Describe(ManifestType, m), m
	}
	fewerTarget, fewerManifest := with(fewer)
	strangeTarget, strangeManifest := with(strange)
	for name, c := range map[string]struct {
		target           Descriptor
		index            []byte
		position         int
		manifest, config []byte
		want             error
	}{
		"another manifest":       {target, nil, 0, otherManifest, other, ErrMismatch},
		"another configuration":  {target, nil, 0, manifest, other, ErrMismatch},
		"another index":          {top, append(slices.Clone(index), ' '), 1, manifest, config, ErrMismatch},
		"another position":       {top, index, 0, manifest, config, ErrMismatch},
		"no such position":       {top, index, 2, manifest, config, ErrInvalid},
		"manifest as an index":   {target, manifest, 0, manifest, config, ErrInvalid},
		"fewer layers":           {fewerTarget, nil, 0, fewerManifest, fewer, ErrInvalid},
		"another kind of layers": {strangeTarget, nil, 0, strangeManifest, strange, ErrUnsupported},
		"index in place of one":  {top, nil, 0, index, config, ErrUnsupported},
	} {
		if _, err := NewImage(c.target, c.index, c.position, c.manifest, c.config); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestChainIDs compares with the digests that containerd gives an image of two layers.
func TestChainIDs(t *testing.T) {
	a, b, c := Sum([]byte("a")), Sum([]byte("b")), Sum([]byte("c"))
	got := Image{DiffIDs: []Digest{a, b, c}}.ChainIDs()
	ab := Sum([]byte(string(a) + " " + string(b)))
	if want := []Digest{a, ab, Sum([]byte(string(ab) + " " + string(c)))}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if len(Image{}.ChainIDs()) != 0 {
		t.Error("an image without layers has chain IDs")
	}
}

func TestSelect(t *testing.T) {
	entry := func(platform, mediaType string) Descriptor {
		var p Platform
		var fields = strings.Split(platform, "/")
		p.OS, p.Architecture = fields[0], fields[1]
		if len(fields) > 2 {
			p.Variant = fields[2]
		}
		return Descriptor{MediaType: mediaType, Digest: Sum([]byte(platform)), Size: 1, Platform: &p}
	}
	list := func(platforms ...string) (out []Descriptor) {
		out = append(out, Descriptor{MediaType: ManifestType, Digest: Sum(nil), Size: 1}) // without a platform
		for _, p := range platforms {
			out = append(out, entry(p, ManifestType))
		}
		return out
	}
	for _, c := range []struct {
		want Platform
		list []Descriptor
		at   int
		err  error
	}{
		{Platform{OS: "linux", Architecture: "amd64"}, list("linux/arm64", "linux/amd64"), 2, nil},
		{Platform{OS: "linux", Architecture: "x86_64"}, list("linux/arm64", "linux/amd64/v1"), 2, nil},
		{Platform{OS: "linux", Architecture: "amd64"}, list("windows/amd64", "linux/386"), 2, nil},
		{Platform{OS: "linux", Architecture: "amd64"}, list("linux/amd64/v3", "unknown/unknown"), 0, ErrNoPlatform},
		{Platform{OS: "linux", Architecture: "amd64", Variant: "v3"}, list("linux/amd64", "linux/amd64/v2"), 2, nil},
		{Platform{OS: "linux", Architecture: "aarch64"}, list("linux/arm/v7", "linux/arm64/v8"), 2, nil},
		{Platform{OS: "linux", Architecture: "arm64"}, list("linux/arm/v6", "linux/arm/v7"), 2, nil},
		{Platform{OS: "linux", Architecture: "arm"}, list("linux/arm/v6", "linux/arm/v5", "linux/arm/v8"), 1, nil},
		{Platform{OS: "linux", Architecture: "arm", Variant: "6"}, list("linux/arm/v7", "linux/arm/v6"), 2, nil},
		{Platform{OS: "linux", Architecture: "riscv64"}, list("linux/amd64", "linux/riscv64"), 2, nil},
		{Platform{OS: "linux", Architecture: "riscv64"}, list("linux/amd64"), 0, ErrNoPlatform},
		{Platform{OS: "linux", Architecture: "amd64"}, []Descriptor{entry("linux/amd64", IndexType)}, 0, ErrUnsupported},
		{Platform{OS: "linux", Architecture: "amd64"}, nil, 0, ErrNoPlatform},
	} {
		if at, err := Select(c.list, c.want); at != c.at || !errors.Is(err, c.err) {
			t.Errorf("%v of %v: %d, %v; want %d, %v", c.want, c.list, at, err, c.at, c.err)
		}
	}
	large := entry("linux/amd64", ManifestType)
	large.Size = MaxDocument + 1
	if _, err := Select([]Descriptor{large}, *large.Platform); !errors.Is(err, ErrTooLarge) {
		t.Errorf("large manifest: %v", err)
	}
}

// TestRunsEndsWithoutDuplicates: a platform's list begins with itself and has each platform once.
func TestRunsEndsWithoutDuplicates(t *testing.T) {
	for _, a := range []string{"amd64", "arm64", "arm", "386", "s390x", "x86_64", "armel", ""} {
		for _, v := range []string{"", "v1", "v2", "v3", "v5", "v6", "v7", "v8", "9", "strange"} {
			p := Platform{OS: "linux", Architecture: a, Variant: v}
			list := p.Runs()
			for i := range list {
				if slices.Contains(list[:i], list[i]) {
					t.Errorf("%v: %v occurs twice in %v", p, list[i], list)
				}
			}
			if list[0] != p.Normal() || p.Normal() != p.Normal().Normal() {
				t.Errorf("%v: %v", p, list)
			}
		}
	}
}

// FuzzParse: what is accepted is an index without layers, or a manifest, within the limits.
func FuzzParse(f *testing.F) {
	corpus.Add(f)
	config, manifest := documents(f, layerA, layerB)
	f.Add(ManifestType, manifest, config)
	f.Add(IndexType, marshal(f, Document{SchemaVersion: 2, Manifests: []Descriptor{Describe(ManifestType,
		manifest)}}), config)
	f.Add(DockerListType, []byte(`{"schemaVersion":2,"manifests":[{"platform":{}}]}`), []byte("{}"))
	f.Fuzz(func(t *testing.T, mediaType string, data, config []byte) {
		d, err := Parse(mediaType, data)
		if err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrTooLarge) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		all := append(slices.Clone(d.Manifests), d.Layers...)
		if d.Config != nil {
			all = append(all, *d.Config)
		}
		for _, one := range all {
			if one.check() != nil {
				t.Fatalf("%+v was accepted", one)
			}
		}
		if d.IsIndex() == (d.Config != nil) {
			t.Fatalf("%+v is neither", d)
		}
		_, _ = Select(d.Manifests, Platform{OS: "linux", Architecture: "amd64"})
		img, err := NewImage(Describe(d.MediaType, data), nil, 0, data, config)
		if err == nil && (len(img.ChainIDs()) != len(img.Layers) || img.Size() < 1) {
			t.Fatalf("%+v", img)
		}
	})
}
