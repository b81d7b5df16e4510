package volume

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/syncloop/volume/render"
)

// volumeDirMode is the kubelet's mode for the root of every volume that it creates.
const volumeDirMode = 0o777

// setUpRendered sets up a configMap, secret, downwardAPI or projected volume. It waits for the
// content first: a volume that cannot be filled is not mounted.
func (m *Manager) setUpRendered(ctx context.Context, p *v1.Pod, v *v1.Volume, vs *volumeState, at setUpState) error {
	tree, err := at.content()
	if err != nil {
		return err
	}
	plugin, memory := placeOf(v)
	dir := m.volumeDir(p.UID, plugin, v.Name)
	vs.mount = Mount{HostPath: dir, ReadOnly: true, SELinux: true}
	if memory {
		vs.memory = dir
	}

	switch {
	case !memory:
		if !vs.ready {
			if err := m.cfg.Host.MkdirAll(ctx, dir, volumeDirMode, nil); err != nil {
				return fmt.Errorf("make directory %s: %w", dir, err)
			}
		}
	case !at.mounted[dir]:
		vs.ready, vs.written = false, false
		if err := m.mountTmpfs(ctx, dir, m.memorySize(p, nil), ""); err != nil {
			return err
		}
	}
	if !vs.ready {
		if err := m.makeNested(ctx, p, v, dir); err != nil {
			return err
		}
	}
	if err := m.write(ctx, p, dir, vs, tree); err != nil {
		return err
	}
	vs.ready = true
	return nil
}

// ahead are the contents of the rendered volumes of a pod, which the API server is asked for while the
// host makes the pod's directories.
type ahead struct {
	began    time.Time
	contents []func() (render.Tree, error) // by the volume's index; each waits for its content
	all      sync.WaitGroup
}

// renderAhead starts to render all volumes of a pod.
func (m *Manager) renderAhead(ctx context.Context, p *v1.Pod) *ahead {
	a := &ahead{began: time.Now(), contents: make([]func() (render.Tree, error), len(p.Spec.Volumes))}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if !render.Is(v) {
			continue
		}
		content := sync.OnceValues(func() (tree render.Tree, err error) {
			err = budget.ErrPanicked
			defer budget.From(ctx).Recover("render a volume")
			return m.render(ctx, p, v)
		})
		a.contents[i] = content
		a.all.Go(func() { _, _ = content() })
	}
	return a
}

// placeOf is the plugin directory of a rendered volume, as in the kubelet; memory says that the
// volume must not be on disk.
func placeOf(v *v1.Volume) (plugin string, memory bool) {
	switch {
	case v.Secret != nil:
		return pluginSecret, true
	case v.Projected != nil:
		return pluginProjected, true
	case v.DownwardAPI != nil:
		return pluginDownwardAPI, true
	}
	return pluginConfigMap, false
}

// render fetches the volume's objects and renders it.
func (m *Manager) render(ctx context.Context, p *v1.Pod, v *v1.Volume) (render.Tree, error) {
	needs := render.NeedsOf(v)
	s := render.Sources{
		ConfigMaps:  make(map[string]render.ConfigMap, len(needs.ConfigMaps)),
		Secrets:     make(map[string]render.Secret, len(needs.Secrets)),
		Tokens:      make(map[render.TokenKey]render.Token, len(needs.Tokens)),
		Allocatable: m.cfg.Allocatable(),

		TrustBundles: make(map[int]render.TrustBundles, len(needs.TrustBundles)),
		Certificates: make(map[int]render.Certificate, len(needs.Certificates)),
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, name := range needs.ConfigMaps {
		wg.Go(func() {
			object, err := m.cfg.Objects.ConfigMap(ctx, p.Namespace, name)
			mu.Lock()
			defer mu.Unlock()
			s.ConfigMaps[name] = render.ConfigMap{Object: object, Err: err}
		})
	}
	for _, name := range needs.Secrets {
		wg.Go(func() {
			object, err := m.cfg.Objects.Secret(ctx, p.Namespace, name)
			mu.Lock()
			defer mu.Unlock()
			s.Secrets[name] = render.Secret{Object: object, Err: err}
		})
	}
	for _, key := range needs.Tokens {
		wg.Go(func() {
			token, err := m.cfg.Tokens.Token(ctx, p, key.Audience, key.ExpirationSeconds)
			mu.Lock()
			defer mu.Unlock()
			s.Tokens[key] = render.Token{Token: token, Err: err}
		})
	}
	for i, projection := range needs.TrustBundles {
		wg.Go(func() {
			pem, err := m.trustBundles(ctx, projection)
			mu.Lock()
			defer mu.Unlock()
			s.TrustBundles[i] = render.TrustBundles{PEM: pem, Err: err}
		})
	}
	for _, i := range needs.Certificates {
		wg.Go(func() {
			c := m.certificate(ctx, p, v.Name, i)
			mu.Lock()
			defer mu.Unlock()
			s.Certificates[i] = c
		})
	}
	wg.Wait()
	return render.Render(p, v, s)
}

func (m *Manager) certificate(ctx context.Context, p *v1.Pod, volume string, place int) (c render.Certificate) {
	if m.cfg.Certificates == nil {
		return render.Certificate{Err: &render.UnsupportedError{Type: "projected podCertificate"}}
	}
	c.Key, c.Chain, c.Err = m.cfg.Certificates.Bundle(ctx, p, volume, place)
	return c
}

// write writes the content to the host and stores its hash.
func (m *Manager) write(ctx context.Context, p *v1.Pod, dir string, vs *volumeState, tree render.Tree) error {
	vs.written = false
	if err := m.cfg.Host.WriteTree(ctx, dir, toHost(tree)); err != nil {
		return fmt.Errorf("write %s: %w", dir, err)
	}
	// The files have their group already; this sets it for the directories and links that the
	// layout added.
	if gid := fsGroup(p); gid != nil {
		if err := m.cfg.Host.ChownGroup(ctx, dir, *gid, true); err != nil {
			return fmt.Errorf("give %s to group %d: %w", dir, *gid, err)
		}
	}
	vs.hash, vs.written = hash(tree), true
	return nil
}

func toHost(tree render.Tree) host.Tree {
	t := make(host.Tree, len(tree))
	for name, f := range tree {
		file := host.TreeFile{Data: f.Data, Mode: f.Mode}
		if f.UID >= 0 || f.GID >= 0 {
			file.Owner = &host.Owner{UID: f.UID, GID: f.GID}
		}
		t[name] = file
	}
	return t
}

// hash identifies a tree, so that no secret is kept in memory to compare with.
func hash(tree render.Tree) [32]byte {
	h := sha256.New()
	number := func(n int64) {
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], uint64(n))
		h.Write(b[:])
	}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		f := tree[name]
		number(int64(len(name)))
		h.Write([]byte(name))
		number(int64(len(f.Data)))
		h.Write(f.Data)
		number(int64(f.Mode))
		number(f.UID)
		number(f.GID)
	}
	var sum [32]byte
	copy(sum[:], h.Sum(nil))
	return sum
}

// makeNested creates the mount points of other volumes inside this one, because the runtime mounts
// this one read-only.
func (m *Manager) makeNested(ctx context.Context, p *v1.Pod, v *v1.Volume, dir string) error {
	nested, err := render.Nested(p, v.Name)
	if err != nil {
		return err
	}
	for _, rel := range nested {
		if err := m.cfg.Host.MkdirAll(ctx, path.Join(dir, rel), 0o755, nil); err != nil {
			return fmt.Errorf("unable to create nested volume mountpoints: %w", err)
		}
	}
	return nil
}

func fsGroup(p *v1.Pod) *int64 {
	if p.Spec.SecurityContext == nil {
		return nil
	}
	return p.Spec.SecurityContext.FSGroup
}
