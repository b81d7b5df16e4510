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

	"github.com/bowline-k8s/bowline/test/labtest"
)

// kubeProxyImage writes an image of kube-proxy as "docker save" does: the lab's program,
// and this machine's iptables with what that is linked to. The layer is called compressed
// and is not: it goes no further than to the lab's registry, which else would compress it.
func kubeProxyImage(t *testing.T, path string) {
	t.Helper()
	var root bytes.Buffer
	layer := &archive{w: tar.NewWriter(&root)}
	layer.file("usr/local/bin/kube-proxy", labtest.Program("bowline-kube"))

	iptables, err := exec.LookPath("iptables")
	must(t, err)
	iptables, err = filepath.EvalSymlinks(iptables) // nft's or the legacy one's, as the hosts of the lab have it
	must(t, err)
	layer.file("usr/sbin/"+filepath.Base(iptables), iptables)
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		layer.link("usr/sbin/"+name, filepath.Base(iptables))
	}
	linked, err := exec.Command("ldd", iptables).Output()
	must(t, err)
	for _, library := range regexp.MustCompile(`/\S+`).FindAllString(string(linked), -1) {
		layer.file(library[1:], library)
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/lib*.so")
	must(t, err)
	if len(extensions) == 0 {
		t.Fatal("iptables has no extensions below /usr/lib: in which package are they here?")
	}
	for _, extension := range extensions {
		layer.file(extension[1:], extension)
	}
	must(t, errors.Join(layer.err, layer.w.Close()))

	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Env": []string{"PATH=/usr/local/bin:/usr/sbin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(root.Bytes()))}},
	})
	must(t, err)
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{"kube-proxy:lab"}, "Layers": []string{"layer.tar"}}})
	must(t, err)
	f, err := os.Create(path)
	must(t, err)
	image := &archive{w: tar.NewWriter(f)}
	image.content("config.json", 0o644, config)
	image.content("layer.tar", 0o644, stored(t, root.Bytes()))
	image.content("manifest.json", 0o644, manifest)
	must(t, errors.Join(image.err, image.w.Close(), f.Close()))
}

// stored is content in gzip's format, as it is.
func stored(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.NoCompression)
	must(t, err)
	_, err = w.Write(content)
	must(t, errors.Join(err, w.Close()))
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
