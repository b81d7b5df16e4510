package oci

import (
	"fmt"
	"slices"
	"strconv"
)

// The labels by which containerd's garbage collector follows an image from blob to blob, and the one that says
// that a layer was unpacked.
const (
	refLabel          = "containerd.io/gc.ref.content."
	snapshotLabel     = "containerd.io/gc.ref.snapshot."
	UncompressedLabel = "containerd.io/uncompressed"
)

// Image is an image for one platform: its documents, and the descriptors of its layers.
type Image struct {
	// Target is what the image's name means: the index, or the manifest if there is no index.
	Target Descriptor
	Index  []byte // nil without an index
	// Position is that of Manifest in the index.
	Position      int
	Manifest      Descriptor
	ManifestBytes []byte
	Config        Descriptor
	ConfigBytes   []byte
	Layers        []Descriptor // the lowest first; a layer may occur more than once
	DiffIDs       []Digest     // of the uncompressed layers
}

// NewImage makes an Image. target and index are those of an index with the manifest at position; index is nil
// if target is the manifest itself. All documents are checked against their descriptors. The error is
// ErrInvalid, ErrUnsupported, ErrTooLarge or ErrMismatch.
func NewImage(target Descriptor, index []byte, position int, manifest, config []byte) (Image, error) {
	i := Image{Target: target, Index: index, Position: position, Manifest: target, ManifestBytes: manifest,
		ConfigBytes: config}
	if index != nil {
		top, err := Parse(target.MediaType, index)
		if err != nil {
			return Image{}, err
		}
		if !top.IsIndex() || position < 0 || position >= len(top.Manifests) {
			return Image{}, fmt.Errorf("manifest %d of an index of %d: %w", position, len(top.Manifests), ErrInvalid)
		}
		if err := target.Verify(index); err != nil {
			return Image{}, fmt.Errorf("index %w", err)
		}
		i.Manifest = top.Manifests[position]
	}
	d, err := Parse(i.Manifest.MediaType, manifest)
	if err != nil {
		return Image{}, err
	}
	if d.IsIndex() {
		return Image{}, fmt.Errorf("index instead of a manifest: %w", ErrUnsupported)
	}
	if err := i.Manifest.Verify(manifest); err != nil {
		return Image{}, fmt.Errorf("manifest %w", err)
	}
	i.Config, i.Layers = *d.Config, d.Layers
	if err := i.Config.Verify(config); err != nil {
		return Image{}, fmt.Errorf("configuration %w", err)
	}
	root, err := parseRootFS(config)
	if err != nil {
		return Image{}, err
	}
	if len(root.DiffIDs) != len(i.Layers) {
		return Image{}, fmt.Errorf("configuration of %d layers, manifest of %d: %w", len(root.DiffIDs), len(i.Layers),
			ErrInvalid)
	}
	i.DiffIDs = root.DiffIDs
	return i, nil
}

// ID is the image's ID in the CRI: the digest of its configuration.
func (i Image) ID() Digest { return i.Config.Digest }

// Distinct returns each layer once, the lowest first.
func (i Image) Distinct() []Descriptor {
	var out []Descriptor
	for _, l := range i.Layers {
		if !slices.ContainsFunc(out, func(d Descriptor) bool { return d.Digest == l.Digest }) {
			out = append(out, l)
		}
	}
	return out
}

// Size is the sum of the distinct layers and the documents, in bytes.
func (i Image) Size() int64 {
	n := i.Manifest.Size + i.Config.Size + int64(len(i.Index))
	for _, l := range i.Distinct() {
		n += l.Size
	}
	return n
}

// IndexLabels are the labels of the index: it keeps the manifest.
func (i Image) IndexLabels() map[string]string {
	return map[string]string{refLabel + "m." + strconv.Itoa(i.Position): string(i.Manifest.Digest)}
}

// ManifestLabels are the labels of the manifest: it keeps the configuration and the layers.
func (i Image) ManifestLabels() map[string]string {
	labels := map[string]string{refLabel + "config": string(i.Config.Digest)}
	for n, l := range i.Layers {
		labels[refLabel+"l."+strconv.Itoa(n)] = string(l.Digest)
	}
	return labels
}

// SnapshotLabel is the label of the configuration that keeps the unpacked image of a snapshotter.
func SnapshotLabel(snapshotter string) string { return snapshotLabel + snapshotter }

// ChainIDs are the names of the image's snapshots, the lowest first: each is the digest of the layers up to
// its own. See "Layer ChainID" in the OCI image specification.
func (i Image) ChainIDs() []Digest {
	ids := slices.Clone(i.DiffIDs)
	for n := 1; n < len(ids); n++ {
		ids[n] = Sum([]byte(ids[n-1] + " " + ids[n]))
	}
	return ids
}
