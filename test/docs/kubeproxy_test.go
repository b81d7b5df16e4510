package docs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// kubeProxyImage writes an image of kube-proxy in the format of "docker save": the lab's program,
// and this machine's iptables with its shared libraries. The layer uses gzip's format without
// compression: it only goes to the lab's registry, which would compress it otherwise.
func kubeProxyImage(t *testing.T, path string) {
	t.Helper()
	var root bytes.Buffer
	layer := &archive{w: tar.NewWriter(&root)}
	layer.file("usr/local/bin/kube-proxy", labtest.Program("bowline-kube"))

	iptables, err := exec.LookPath("iptables")
	testutil.Must(t, err)
	iptables, err = filepath.EvalSymlinks(iptables) // nft's or the legacy one's, as in the lab's hosts
	testutil.Must(t, err)
	layer.file("usr/sbin/"+filepath.Base(iptables), iptables)
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		layer.link("usr/sbin/"+name, filepath.Base(iptables))
	}
	linked, err := exec.Command("ldd", iptables).Output()
	testutil.Must(t, err)
	for _, library := range regexp.MustCompile(`/\S+`).FindAllString(string(linked), -1) {
		layer.file(library[1:], library)
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/lib*.so")
	testutil.Must(t, err)
	if len(extensions) == 0 {
		t.Fatal("iptables has no extensions below /usr/lib: in which package are they here?")
	}
	for _, extension := range extensions {
		layer.file(extension[1:], extension)
	}
	testutil.Must(t, errors.Join(layer.err, layer.w.Close()))

	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Env": []string{"PATH=/usr/local/bin:/usr/sbin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(root.Bytes()))}},
	})
	testutil.Must(t, err)
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{"kube-proxy:lab"}, "Layers": []string{"layer.tar"}}})
	testutil.Must(t, err)
	f, err := os.Create(path)
	testutil.Must(t, err)
	image := &archive{w: tar.NewWriter(f)}
	image.content("config.json", 0o644, config)
	image.content("layer.tar", 0o644, stored(t, root.Bytes()))
	image.content("manifest.json", 0o644, manifest)
	testutil.Must(t, errors.Join(image.err, image.w.Close(), f.Close()))
}

// stored wraps content in gzip's format without compression.
func stored(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.NoCompression)
	testutil.Must(t, err)
	_, err = w.Write(content)
	testutil.Must(t, errors.Join(err, w.Close()))
	return b.Bytes()
}

// archive keeps the first error of many writes.
type archive struct {
	w   *tar.Writer
	err error
}

func (a *archive) entry(h *tar.Header, content []byte) {
	if a.err != nil {
		return
	}
	h.Size = int64(len(content))
	if a.err = a.w.WriteHeader(h); a.err == nil {
		_, a.err = a.w.Write(content)
	}
}

func (a *archive) content(name string, mode int64, content []byte) {
	a.entry(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode}, content)
}

func (a *archive) file(name, from string) {
	content, err := os.ReadFile(from)
	if a.err == nil {
		a.err = err
	}
	a.content(name, 0o755, content)
}

func (a *archive) link(name, to string) {
	a.entry(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}, nil)
}
