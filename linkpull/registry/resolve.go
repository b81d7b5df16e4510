package registry

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/bowline-k8s/bowline/linkpull/oci"
)

// Remote is an image in a registry: its documents, which have been read and checked, and access to its layers.
type Remote struct {
	oci.Image
	session *session
	name    string // of the image, for errors
}

// Resolve reads the documents of an image for a platform. auth may be nil. The error is an *Error. Its cause
// is of package oci if the image itself is not usable.
func (c *Client) Resolve(ctx context.Context, ref reference.Named, platform oci.Platform, auth *Auth) (*Remote,
	error) {
	ctx, cancel := context.WithTimeout(ctx, 4*documentTime)
	defer cancel()
	s := &session{client: c, registry: reference.Domain(ref), repository: reference.Path(ref), auth: auth}
	r := &Remote{session: s, name: ref.String()}
	at, digest := "latest", oci.Digest("")
	if t, ok := ref.(reference.Tagged); ok {
		at = t.Tag()
	}
	if d, ok := ref.(reference.Digested); ok {
		var err error
		if digest, err = oci.ParseDigest(d.Digest().String()); err != nil {
			return nil, r.malformed("manifest", err)
		}
		at = string(digest)
	}
	target, data, err := r.document(ctx, "manifest", "/manifests/"+at)
	if err != nil {
		return nil, err
	}
	if digest != "" && target.Digest != digest {
		return nil, r.malformed("manifest", fmt.Errorf("%s has the digest %s: %w", digest, target.Digest,
			oci.ErrMismatch))
	}
	top, err := oci.Parse(target.MediaType, data)
	if err != nil {
		return nil, r.malformed("manifest", err)
	}
	var index []byte
	position, manifest := 0, top
	if top.IsIndex() {
		index = data
		if position, err = oci.Select(top.Manifests, platform); err != nil {
			return nil, r.malformed("manifest", err)
		}
		entry := top.Manifests[position]
		if _, data, err = r.document(ctx, "manifest", "/manifests/"+string(entry.Digest)); err != nil {
			return nil, err
		}
		if err := entry.Verify(data); err != nil {
			return nil, r.malformed("manifest", err)
		}
		if manifest, err = oci.Parse(entry.MediaType, data); err != nil {
			return nil, r.malformed("manifest", err)
		}
	}
	if manifest.Config == nil {
		return nil, r.malformed("manifest", oci.ErrInvalid)
	}
	_, config, err := r.document(ctx, "configuration", "/blobs/"+string(manifest.Config.Digest))
	if err != nil {
		return nil, err
	}
	if r.Image, err = oci.NewImage(target, index, position, data, config); err != nil {
		return nil, r.malformed("image", err)
	}
	if r.Size() > c.config.MaxImage {
		return nil, r.malformed("image", fmt.Errorf("%d bytes: %w", r.Size(), oci.ErrTooLarge))
	}
	return r, nil
}

func (r *Remote) malformed(kind string, err error) *Error {
	return &Error{Kind: Malformed, What: kind + " of " + r.name, Err: err}
}

// document reads a manifest, an index or a configuration, and describes what came.
func (r *Remote) document(ctx context.Context, kind, path string) (oci.Descriptor, []byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, documentTime, errSlow)
	defer cancel()
	what := kind + " of " + r.name
	var d oci.Descriptor
	var data []byte
	err := r.session.client.retry(ctx, func() error {
		resp, err := r.session.get(ctx, what, path, http.Header{"Accept": slices.Clone(accepted)})
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.ContentLength > oci.MaxDocument {
			return r.malformed(kind, fmt.Errorf("%d bytes: %w", resp.ContentLength, oci.ErrTooLarge))
		}
		if data, err = readAll(resp.Body, oci.MaxDocument); err != nil {
			return failed(what, cause(ctx, err))
		}
		mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
		d = oci.Describe(mediaType, data)
		return nil
	})
	return d, data, err
}

var (
	accepted = []string{strings.Join(append(slices.Clone(oci.Accepted), "*/*;q=0.1"), ", ")}
	errSlow  = errors.New("the registry took too long")
)
