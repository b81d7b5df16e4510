package oci

import (
	"encoding/json"
	"fmt"
	"mime"
	"slices"
)

// The media types of documents and layers.
const (
	IndexType          = "application/vnd.oci.image.index.v1+json"
	ManifestType       = "application/vnd.oci.image.manifest.v1+json"
	ConfigType         = "application/vnd.oci.image.config.v1+json"
	LayerGzipType      = "application/vnd.oci.image.layer.v1.tar+gzip"
	DockerListType     = "application/vnd.docker.distribution.manifest.list.v2+json"
	DockerManifestType = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfigType   = "application/vnd.docker.container.image.v1+json"
)

// Accepted are the media types of documents that Parse reads, in the order of preference.
var Accepted = []string{IndexType, ManifestType, DockerListType, DockerManifestType}

// Document is an index or a manifest. An index has Manifests, and a manifest Config and Layers.
type Document struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType,omitempty"`
	Manifests     []Descriptor `json:"manifests,omitempty"`
	Config        *Descriptor  `json:"config,omitempty"`
	Layers        []Descriptor `json:"layers,omitempty"`
}

// IsIndex reports whether the document is an index.
func (d Document) IsIndex() bool { return d.MediaType == IndexType || d.MediaType == DockerListType }

// Parse reads an index or a manifest. mediaType is what the registry, or a descriptor, calls it. A document
// that can be read as both kinds is invalid: two readers could see two images in it. The error is ErrInvalid,
// ErrUnsupported or ErrTooLarge.
func Parse(mediaType string, data []byte) (Document, error) {
	if len(data) > MaxDocument {
		return Document{}, fmt.Errorf("document of %d bytes: %w", len(data), ErrTooLarge)
	}
	named, _, err := mime.ParseMediaType(mediaType)
	if err != nil || !slices.Contains(Accepted, named) {
		return Document{}, fmt.Errorf("document of type %.100q: %w", mediaType, ErrUnsupported)
	}
	var d Document
	if err := json.Unmarshal(data, &d); err != nil {
		return Document{}, fmt.Errorf("document is no JSON object of its type: %w", ErrInvalid)
	}
	switch {
	case d.SchemaVersion != 2:
		return Document{}, fmt.Errorf("document of schema version %d: %w", d.SchemaVersion, ErrUnsupported)
	case d.MediaType != "" && d.MediaType != named:
		return Document{}, fmt.Errorf("document of type %s says that it is %.100q: %w", named, d.MediaType, ErrInvalid)
	}
	d.MediaType = named
	if d.IsIndex() {
		err = d.checkIndex()
	} else {
		err = d.checkManifest()
	}
	if err != nil {
		return Document{}, err
	}
	return d, nil
}

func (d Document) checkIndex() error {
	switch {
	case d.Config != nil || len(d.Layers) > 0:
		return fmt.Errorf("index with layers: %w", ErrInvalid)
	case len(d.Manifests) > MaxManifests:
		return fmt.Errorf("index of %d manifests: %w", len(d.Manifests), ErrTooLarge)
	}
	for _, m := range d.Manifests {
		if err := m.check(); err != nil {
			return fmt.Errorf("index: manifest %w", err)
		}
	}
	return nil
}

func (d Document) checkManifest() error {
	switch {
	case len(d.Manifests) > 0:
		return fmt.Errorf("manifest with manifests: %w", ErrInvalid)
	case d.Config == nil:
		return fmt.Errorf("manifest without a configuration: %w", ErrInvalid)
	case d.Config.MediaType != ConfigType && d.Config.MediaType != dockerConfigType:
		return fmt.Errorf("manifest of an artifact of type %.100q: %w", d.Config.MediaType, ErrUnsupported)
	case len(d.Layers) > MaxLayers:
		return fmt.Errorf("manifest of %d layers: %w", len(d.Layers), ErrTooLarge)
	}
	if err := d.Config.check(); err != nil {
		return fmt.Errorf("manifest: configuration %w", err)
	}
	if d.Config.Size > MaxDocument {
		return fmt.Errorf("configuration of %d bytes: %w", d.Config.Size, ErrTooLarge)
	}
	for _, l := range d.Layers {
		if err := l.check(); err != nil {
			return fmt.Errorf("manifest: layer %w", err)
		}
	}
	return nil
}

// Config is the part of an image's configuration that unpacking needs, and what Bowline's own image has.
type Config struct {
	Created      string        `json:"created,omitempty"` // RFC 3339
	Architecture string        `json:"architecture"`
	OS           string        `json:"os"`
	Variant      string        `json:"variant,omitempty"`
	Config       RuntimeConfig `json:"config"`
	RootFS       RootFS        `json:"rootfs"`
}

// RuntimeConfig says how a container of the image starts.
type RuntimeConfig struct {
	Entrypoint []string          `json:"Entrypoint,omitempty"`
	WorkingDir string            `json:"WorkingDir,omitempty"`
	Labels     map[string]string `json:"Labels,omitempty"`
}

// RootFS lists the digests of the uncompressed layers, the lowest first.
type RootFS struct {
	Type    string   `json:"type"`
	DiffIDs []Digest `json:"diff_ids"`
}

// parseRootFS reads the layers from an image's configuration.
func parseRootFS(data []byte) (RootFS, error) {
	var c struct {
		RootFS RootFS `json:"rootfs"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return RootFS{}, fmt.Errorf("configuration is no JSON object: %w", ErrInvalid)
	}
	if c.RootFS.Type != "" && c.RootFS.Type != "layers" {
		return RootFS{}, fmt.Errorf("root file system of type %.100q: %w", c.RootFS.Type, ErrUnsupported)
	}
	for _, id := range c.RootFS.DiffIDs {
		if _, err := ParseDigest(string(id)); err != nil {
			return RootFS{}, fmt.Errorf("configuration: layer %w", err)
		}
	}
	return c.RootFS, nil
}
