package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/volume/render"

	"github.com/bowline-k8s/bowline/pod"
)

// Claims reads claims, persistent volumes and this node from the API server, when a pod's volumes
// are set up; nothing is watched. Errors are like those of Objects.
type Claims interface {
	PersistentVolumeClaim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error)
	PersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error)
	Node(ctx context.Context) (*v1.Node, error)
}

// pluginLocal is the kubelet's plugin name with the slash escaped.
const pluginLocal = "kubernetes.io~local-volume"

// protectionFinalizer keeps a deleted claim until no pod uses it.
const protectionFinalizer = "kubernetes.io/pvc-protection"

// setUpClaim sets up a persistentVolumeClaim or ephemeral volume from the persistent volume that
// its claim is bound to.
func (m *Manager) setUpClaim(ctx context.Context, p *v1.Pod, v *v1.Volume, vs *volumeState, at setUpState) error {
	if m.cfg.Claims == nil {
		return &render.UnsupportedError{Type: render.TypeOf(v)}
	}
	if vs.ready && (!vs.bound || at.mounted[vs.mount.HostPath]) {
		return nil
	}
	pv, readOnly, err := m.boundTo(ctx, p, v)
	if err != nil {
		return err
	}
	has, err := m.given(ctx, p, v, pv, at)
	if err != nil {
		return err
	}
	if err := m.cfg.Allow(p, v.Name, pv, has); err != nil {
		return err
	}
	if !has {
		if err := m.recordGiven(ctx, p, v, pv); err != nil {
			return err
		}
	}
	if err := m.checkNode(ctx, pv); err != nil {
		return err
	}
	block := isBlock(pv)
	if err := checkMode(p, v.Name, block); err != nil {
		return err
	}
	switch source := pv.Spec.PersistentVolumeSource; {
	case source.HostPath != nil && !block:
		inline := &v1.Volume{Name: v.Name, VolumeSource: v1.VolumeSource{HostPath: source.HostPath}}
		if err := m.setUpHostPath(ctx, inline, vs); err != nil {
			return err
		}
		vs.mount.ReadOnly = readOnly
		return nil
	case source.NFS != nil && !block:
		return m.setUpNFS(ctx, p, pv.Name, source.NFS, pv.Spec.MountOptions, readOnly, vs, at)
	case source.Local != nil && block:
		if err := m.setUpDevice(ctx, source.Local.Path, readOnly, vs); err != nil {
			return &mapError{err}
		}
		if !has || vs.failed { // else an earlier process has recorded it
			m.mapped(p, pv.Name, source.Local.Path)
		}
		return nil
	case source.Local != nil:
		return m.setUpLocal(ctx, p, pv, readOnly, vs, at)
	case source.CSI != nil:
		return driverError(source.CSI.Driver)
	}
	return &render.UnsupportedError{Type: "a persistent volume of type " + render.SourceOf(pv.Spec.PersistentVolumeSource)}
}

// boundTo returns the persistent volume behind v, after checking the claim and the binding.
func (m *Manager) boundTo(ctx context.Context, p *v1.Pod, v *v1.Volume) (*v1.PersistentVolume, bool, error) {
	name, readOnly := p.Name+"-"+v.Name, false
	if c := v.PersistentVolumeClaim; c != nil {
		name, readOnly = c.ClaimName, c.ReadOnly
	}
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("error processing PVC %s/%s: %w", p.Namespace, name, fmt.Errorf(format, args...))
	}
	claim, err := m.cfg.Claims.PersistentVolumeClaim(ctx, p.Namespace, name)
	switch {
	case err != nil:
		return nil, false, wrong("failed to fetch PVC from API server: %w", err)
	case v.Ephemeral != nil && !metav1.IsControlledBy(claim, p):
		return nil, false, fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", p.Namespace, name, p.Namespace, p.Name)
	case claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, protectionFinalizer):
		return nil, false, wrong("PVC is being deleted")
	case claim.Status.Phase != v1.ClaimBound:
		return nil, false, wrong("PVC is not bound")
	case claim.Spec.VolumeName == "":
		return nil, false, wrong("PVC has empty pvc.Spec.VolumeName")
	}
	pv, err := m.cfg.Claims.PersistentVolume(ctx, claim.Spec.VolumeName)
	switch {
	case err != nil:
		return nil, false, wrong("failed to fetch PV %s from API server: %w", claim.Spec.VolumeName, err)
	case pv.Spec.ClaimRef == nil:
		return nil, false, wrong("found PV object %s but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim", pv.Name)
	case pv.Spec.ClaimRef.UID != claim.UID:
		return nil, false, wrong("found PV object %s but its pv.Spec.ClaimRef.UID %s does not point to claim.UID %s", pv.Name, pv.Spec.ClaimRef.UID, claim.UID)
	}
	return pv, readOnly, nil
}

// checkNode refuses a volume of another node. A pod that bypassed the scheduler would otherwise get
// an empty directory here, or someone else's.
func (m *Manager) checkNode(ctx context.Context, pv *v1.PersistentVolume) error {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil
	}
	node, err := m.cfg.Claims.Node(ctx)
	if apierrors.IsNotFound(err) {
		return errors.New("storage node affinity check failed: the node is not registered yet")
	}
	if err != nil {
		return fmt.Errorf("storage node affinity check failed: %w", err)
	}
	selector, err := nodeaffinity.NewNodeSelector(pv.Spec.NodeAffinity.Required)
	if err != nil {
		return fmt.Errorf("storage node affinity check failed: %w", err)
	}
	if !selector.Match(node) {
		return errors.New("storage node affinity check failed: no matching NodeSelectorTerms")
	}
	return nil
}

// checkMode checks that a file system is used by volumeMounts and a block volume by volumeDevices.
func checkMode(p *v1.Pod, name string, block bool) error {
	mode, wrong := v1.PersistentVolumeFilesystem, "volumeDevices"
	if block {
		mode, wrong = v1.PersistentVolumeBlock, "volumeMounts"
	}
	check := func(mounts []v1.VolumeMount, devices []v1.VolumeDevice) bool {
		if block {
			return slices.ContainsFunc(mounts, func(x v1.VolumeMount) bool { return x.Name == name })
		}
		return slices.ContainsFunc(devices, func(x v1.VolumeDevice) bool { return x.Name == name })
	}
	for c := range pod.Containers(&p.Spec) {
		if check(c.VolumeMounts, c.VolumeDevices) {
			return fmt.Errorf("volume %s has volumeMode %s, but is specified in %s", name, mode, wrong)
		}
	}
	return nil
}

// groupHolds reports whether the pod's fsGroupChangePolicy is OnRootMismatch, and the root of the
// volume already has the group and mode.
func groupHolds(p *v1.Pod, root host.FileInfo, gid int64) bool {
	policy := p.Spec.SecurityContext.FSGroupChangePolicy
	const needed = fs.ModeSetgid | 0o770
	return policy != nil && *policy == v1.FSGroupChangeOnRootMismatch && root.GID == gid && root.Mode&needed == needed
}

// setUpLocal mounts a directory of the host, or the file system on one of its devices, in the pod's
// own directory, so that each pod has its own mount and its own group for the files.
func (m *Manager) setUpLocal(ctx context.Context, p *v1.Pod, pv *v1.PersistentVolume, readOnly bool, vs *volumeState, at setUpState) error {
	source := pv.Spec.Local.Path
	if !path.IsAbs(source) || slices.Contains(strings.Split(source, "/"), "..") {
		return fmt.Errorf("invalid path: %s must be absolute and must not contain '..'", source)
	}
	if strings.ContainsRune(pv.Name, '/') {
		return fmt.Errorf("the persistent volume's name %q cannot name a directory", pv.Name)
	}
	dir := m.volumeDir(p.UID, pluginLocal, pv.Name)
	vs.mount, vs.bound = Mount{HostPath: dir, ReadOnly: readOnly, SELinux: true}, true
	if vs.ready && at.mounted[dir] {
		return nil
	}
	vs.ready = false
	real, info, err := m.follow(ctx, source)
	switch {
	case err == nil && isBlockDevice(info):
		// Look before the mount: of two pods that begin together, at least one must set the group.
		shared, err := m.shared(ctx, p, pv)
		if err != nil {
			return err
		}
		if !at.mounted[dir] {
			if err := m.mountDevice(ctx, real, dir, pv, readOnly); err != nil {
				return err
			}
			vs.first = !shared
		}
		// The group can only be set after the mount. An earlier attempt may not have finished that,
		// so do it again.
		if err := m.giveGroup(ctx, p, pv, dir, readOnly, shared && !vs.first, at.mounted[dir]); err != nil {
			return err
		}
		vs.ready = true
		return nil
	case at.mounted[dir] && (err == nil || errors.Is(err, fs.ErrNotExist)):
		vs.ready = true
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("path %q does not exist", source)
	case err != nil:
		return fmt.Errorf("look for %s: %w", source, err)
	case !info.Mode.IsDir():
		return fmt.Errorf("path %q is not a directory", source)
	}
	mount := host.Mount{Source: source, Target: dir, Type: "bind", Options: slices.Clone(pv.Spec.MountOptions)}
	if readOnly {
		mount.Options = append(mount.Options, "ro")
	}
	// Set the group first: an existing mount then means that the volume is complete, also to a
	// later process.
	shared, err := m.shared(ctx, p, pv)
	if err != nil {
		return err
	}
	if err := m.giveGroup(ctx, p, pv, source, readOnly, shared, false); err != nil {
		return err
	}
	if err := m.cfg.Host.Mount(ctx, mount); err != nil {
		return fmt.Errorf("mount %s: %w", source, err)
	}
	vs.ready = true
	return nil
}

// giveGroup gives the content of a local volume, at dir, to the pod's group, unless groupHolds. Like
// a kubelet, it leaves the group alone if another pod has had the volume before (shared), and records
// that the two disagree. again means that an earlier attempt has mounted it.
func (m *Manager) giveGroup(ctx context.Context, p *v1.Pod, pv *v1.PersistentVolume, dir string, readOnly, shared, again bool) error {
	gid := fsGroup(p)
	if gid == nil || readOnly && !shared {
		return nil
	}
	_, root, err := m.follow(ctx, dir)
	if err != nil {
		return fmt.Errorf("look for %s: %w", dir, err)
	}
	switch {
	case shared && root.GID != *gid:
		if !again {
			m.event(p, v1.EventTypeWarning, "AlreadyMountedVolume",
				fmt.Sprintf("fsGroup %d is not applied to the volume %s: another pod has mounted it, and its group is %d", *gid, pv.Name, root.GID))
		}
		return nil
	case shared && !again, readOnly, groupHolds(p, root, *gid):
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.reportSlowGroup(ctx, p, dir)
	if err := m.cfg.Host.ChownGroup(ctx, dir, *gid, false); err != nil {
		return fmt.Errorf("give %s to group %d: %w", dir, *gid, err)
	}
	return nil
}

// shared reports whether another pod of this node has mounted the local volume. That does not matter to
// a pod without a group, for which it does not look.
func (m *Manager) shared(ctx context.Context, p *v1.Pod, pv *v1.PersistentVolume) (bool, error) {
	if fsGroup(p) == nil {
		return false, nil
	}
	pods := path.Dir(m.podDir(p.UID))
	list, err := m.cfg.Host.ListMounts(ctx, pods)
	if err != nil {
		return false, fmt.Errorf("list the mounts of volume %s: %w", pv.Name, err)
	}
	own := m.volumeDir(p.UID, pluginLocal, pv.Name)
	return slices.ContainsFunc(list, func(other host.Mount) bool {
		return other.Target != own && strings.HasPrefix(other.Target, pods+"/") && strings.HasSuffix(other.Target, "/volumes/"+pluginLocal+"/"+pv.Name)
	}), nil
}
