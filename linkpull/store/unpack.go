package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"

	"github.com/bowline-k8s/bowline/linkpull/oci"
)

// snapshotRef names the snapshot that a prepared one will become. With it, containerd answers that this exists
// already, and adds it to the lease.
const snapshotRef = "containerd.io/snapshot.ref"

// managedLabel marks the images of the CRI.
const managedLabel, managed = "io.cri-containerd.image", "managed"

// applyTime is how long containerd may take to unpack a layer: it depends on the host's disk and processor.
func applyTime(size int64) time.Duration { return 5*time.Minute + time.Duration(size>>20)*time.Second }

// label adds labels to a blob.
func (s *Store) label(ctx context.Context, d oci.Digest, labels map[string]string) error {
	mask := &fieldmaskpb.FieldMask{}
	for key := range labels {
		mask.Paths = append(mask.Paths, "labels."+key)
	}
	return s.retry(ctx, func() error {
		info := &contentapi.Info{Digest: string(d), Labels: labels}
		_, err := s.content.Update(ctx, &contentapi.UpdateRequest{Info: info, UpdateMask: mask})
		if err != nil {
			return fmt.Errorf("label %s in containerd: %w", d, err)
		}
		return nil
	})
}

// unpack makes a snapshot of each layer on top of the one before it.
func (s *Store) unpack(ctx context.Context, i oci.Image) error {
	parent, chain := "", i.ChainIDs()
	for n, id := range chain {
		made := false
		err := s.retry(ctx, func() (err error) {
			made, err = s.unpackLayer(ctx, i.Layers[n], i.DiffIDs[n], parent, string(id))
			return err
		})
		if err == nil && made {
			err = s.label(ctx, i.Layers[n].Digest, map[string]string{oci.UncompressedLabel: string(i.DiffIDs[n])})
		}
		if err != nil {
			return fmt.Errorf("unpack layer %s: %w", i.Layers[n].Digest, err)
		}
		parent = string(id)
	}
	if parent == "" {
		return nil
	}
	return s.label(ctx, i.Config.Digest, map[string]string{oci.SnapshotLabel(s.config.Snapshotter): parent})
}

// unpackLayer makes the snapshot id of a layer, unless it exists.
func (s *Store) unpackLayer(ctx context.Context, layer oci.Descriptor, diffID oci.Digest, parent, id string) (
	made bool, err error) {
	// What a call that was cut off has left under its own key belongs to the lease, and ends with it.
	key := "extract-bowline-" + rand.Text() + " " + id
	prepared, err := s.snapshots.Prepare(ctx, &snapshotsapi.PrepareSnapshotRequest{
		Snapshotter: s.config.Snapshotter, Key: key, Parent: parent, Labels: map[string]string{snapshotRef: id}})
	if isExists(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("prepare a snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.removeSnapshot(ctx, key))
		}
	}()
	limited, cancel := context.WithTimeout(ctx, applyTime(layer.Size))
	defer cancel()
	applied, err := s.diff.Apply(limited, &diffapi.ApplyRequest{Diff: descriptor(layer), Mounts: prepared.GetMounts()})
	if err != nil {
		return false, fmt.Errorf("apply it: %w", err)
	}
	if got := applied.GetApplied().GetDigest(); got != string(diffID) {
		return false, fmt.Errorf("it has the uncompressed digest %q instead of %s: %w", got, diffID, oci.ErrMismatch)
	}
	_, err = s.snapshots.Commit(ctx, &snapshotsapi.CommitSnapshotRequest{
		Snapshotter: s.config.Snapshotter, Name: id, Key: key})
	if isExists(err) { // another one was faster
		err = s.removeSnapshot(ctx, key)
	}
	if err != nil {
		return false, fmt.Errorf("commit its snapshot: %w", err)
	}
	return true, nil
}

func (s *Store) removeSnapshot(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	_, err := s.snapshots.Remove(ctx, &snapshotsapi.RemoveSnapshotRequest{Snapshotter: s.config.Snapshotter, Key: key})
	if err != nil && !isNotFound(err) {
		return fmt.Errorf("remove the snapshot %q: %w", key, err)
	}
	return nil
}

// record makes the image known: first its ID, as the CRI does, so that no name refers to an image without one.
func (s *Store) record(ctx context.Context, i Image) error {
	for _, name := range append([]string{string(i.ID())}, i.Names...) {
		image := &imagesapi.Image{Name: name, Target: descriptor(i.Target),
			Labels: map[string]string{managedLabel: managed}}
		err := s.retry(ctx, func() error {
			_, err := s.images.Create(ctx, &imagesapi.CreateImageRequest{Image: image})
			if isExists(err) {
				mask := &fieldmaskpb.FieldMask{Paths: []string{"target", "labels." + managedLabel}}
				_, err = s.images.Update(ctx, &imagesapi.UpdateImageRequest{Image: image, UpdateMask: mask})
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("record the image %q in containerd: %w", name, err)
		}
	}
	return nil
}

func descriptor(d oci.Descriptor) *types.Descriptor {
	return &types.Descriptor{MediaType: d.MediaType, Digest: string(d.Digest), Size: d.Size}
}
