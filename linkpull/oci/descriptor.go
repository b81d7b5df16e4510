// Package oci reads and checks the documents of a container image: index, manifest and configuration, of OCI
// and of Docker (schema 2). It chooses the manifest of a platform and computes what containerd needs to know
// about an image. Digests are sha256.
//
// The package is pure: its results depend only on the bytes and values that it gets.
package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// The reasons why an image cannot be used.
var (
	// ErrInvalid: a document contradicts the specification or itself.
	ErrInvalid = errors.New("invalid")
	// ErrUnsupported: a document is of a kind that this package does not read.
	ErrUnsupported = errors.New("unsupported")
	// ErrTooLarge: a document or an image exceeds a limit.
	ErrTooLarge = errors.New("too large")
	// ErrMismatch: bytes do not have the digest or the size of their descriptor.
	ErrMismatch = errors.New("other content than its descriptor says")
	// ErrNoPlatform: an index has no manifest for the platform.
	ErrNoPlatform = errors.New("no manifest for the platform")
)

// The limits of what is read. An image of 127 layers is the most that Docker builds.
const (
	MaxDocument  = 4 << 20 // bytes of an index, a manifest or a configuration
	MaxManifests = 1024    // of an index
	MaxLayers    = 256     // of a manifest
	maxBlob      = 1 << 40 // bytes of a blob; the sum over MaxLayers fits an int64
)

const algorithm = "sha256:"

// Digest is "sha256:" and 64 hexadecimal digits in lower case. Only ParseDigest and Sum make one from outside
// data; a document with another digest is refused.
type Digest string

// Sum returns the digest of data.
func Sum(data []byte) Digest {
	sum := sha256.Sum256(data)
	return FromHash(sum[:])
}

// FromHash returns the digest with the given SHA-256 hash.
func FromHash(sum []byte) Digest { return Digest(algorithm + hex.EncodeToString(sum)) }

// ParseDigest checks a digest. The error is ErrUnsupported for another algorithm, and ErrInvalid otherwise.
func ParseDigest(s string) (Digest, error) {
	name, value, ok := strings.Cut(s, ":")
	switch {
	case !ok:
		return "", fmt.Errorf("digest %.100q: %w", s, ErrInvalid)
	case name+":" != algorithm:
		return "", fmt.Errorf("digest of algorithm %.20q: %w", name, ErrUnsupported)
	}
	if raw, err := hex.DecodeString(value); err != nil || len(raw) != sha256.Size || value != strings.ToLower(value) {
		return "", fmt.Errorf("digest %.100q: %w", s, ErrInvalid)
	}
	return Digest(s), nil
}

// Hex returns the digest without its algorithm.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), algorithm) }

// Descriptor names a blob by its content.
type Descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      Digest            `json:"digest"`
	Size        int64             `json:"size"` // bytes, at least 1
	Platform    *Platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Describe returns the descriptor of data.
func Describe(mediaType string, data []byte) Descriptor {
	return Descriptor{MediaType: mediaType, Digest: Sum(data), Size: int64(len(data))}
}

// Verify compares data with the descriptor. The error is ErrMismatch.
func (d Descriptor) Verify(data []byte) error {
	if int64(len(data)) != d.Size {
		return fmt.Errorf("%s has %d bytes instead of %d: %w", d.Digest, len(data), d.Size, ErrMismatch)
	}
	if sum := Sum(data); sum != d.Digest {
		return fmt.Errorf("%s has the digest %s: %w", d.Digest, sum, ErrMismatch)
	}
	return nil
}

// check refuses a descriptor that another part of the code could stumble over.
func (d Descriptor) check() error {
	if _, err := ParseDigest(string(d.Digest)); err != nil {
		return err
	}
	switch {
	case d.MediaType == "":
		return fmt.Errorf("%s without a media type: %w", d.Digest, ErrInvalid)
	case d.Size < 1:
		return fmt.Errorf("%s with a size of %d bytes: %w", d.Digest, d.Size, ErrInvalid)
	case d.Size > maxBlob:
		return fmt.Errorf("%s with a size of %d bytes: %w", d.Digest, d.Size, ErrTooLarge)
	}
	return nil
}
