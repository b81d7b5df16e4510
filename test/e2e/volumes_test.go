package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// noContainers returns the condition that none of a pod's containers runs.
func noContainers(uid string) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{
			LabelSelector: map[string]string{pod.LabelPodUID: uid},
			State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}})
		if err == nil && len(list) > 0 {
			err = fmt.Errorf("%d run", len(list))
		}
		return err
	}
}

// Every pod's token is bound to the pod, and the API server accepts it.
func TestServiceAccountToken(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	kubectl(t, "create", "rolebinding", "-n", ns, "reads", "--clusterrole=view", "--serviceaccount="+ns+":default")
	create(t, ns, brief("asks", `
  containers:
  - name: main
    image: $TOOLBOX
    command: [sleep, inf]
    volumeMounts: [{name: mine, mountPath: /mine}]
  volumes:
  - name: mine
    projected:
      sources:
      - {serviceAccountToken: {path: token, audience: elsewhere, expirationSeconds: 600}}
      - {configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: deep/ca.pem}]}}
      - {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
      - {podCertificate: {signerName: bowline.example/lab, keyType: ED25519, credentialBundlePath: bundle, certificateChainPath: chain}}
`))
	signOne(t, lab.Client.CertificatesV1(), ns)
	p := ready(t, ns, "asks")
	const at = "/var/run/secrets/kubernetes.io/serviceaccount"
	if got := inPod(t, ns, "asks", "cat "+at+"/namespace; ls "+at); !strings.HasPrefix(got, ns) || !strings.Contains(got, "ca.crt") {
		t.Errorf("the mount holds %q", got)
	}
	token := inPod(t, ns, "asks", "cat "+at+"/token")
	review := kubectlIn(t, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"`+token+`"}}`, "create", "-f", "-", "-o", "json")
	for _, want := range []string{`"authenticated": true`, "system:serviceaccount:" + ns + ":default", string(p.UID)} {
		if !strings.Contains(review, want) { // the review has the token, which no log shows
			t.Errorf("%s is not in the review of the token", want)
		}
	}
	if mine := inPod(t, ns, "asks", "cat /mine/token"); mine == token || strings.Count(mine, ".") != 2 {
		t.Error("the token for another audience is none of its own")
	}
	if got := inPod(t, ns, "asks", "cat /mine/name; grep -c BEGIN /mine/deep/ca.pem"); got != "asks1" && got != "asks\n1" {
		t.Errorf("the projected volume holds %q", got)
	}
	equal(t, "the certificate's files", inPod(t, ns, "asks", "grep BEGIN /mine/bundle; grep -c BEGIN /mine/chain"), "-----BEGIN PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\n1")
	// From inside: the API server by its Service, with the pod's own token and CA.
	out := inPod(t, ns, "asks", `wget --help 2>&1 | head -n 3; nc kubernetes.default.svc 443 </dev/null && echo reached`)
	contains(t, "a request to the API server's Service", out, "reached")
}

func kubectlIn(t *testing.T, input string, args ...string) string {
	t.Helper()
	out, err := lab.KubectlIn(t.Context(), input, args...)
	testutil.Must(t, err)
	if out.Code != 0 {
		t.Fatalf("kubectl %s: exit code %d: %s", strings.Join(args, " "), out.Code, out.Stderr)
	}
	return out.Stdout
}

// configMaps, secrets and labels in volumes: content, modes, and live updates.
func TestLiveVolumes(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	configMap(t, ns, "page", map[string]string{"index": "one", "other": "same"})
	many := map[string]string{} // close to 1 MiB, the maximum of a configMap
	for i := range 1000 {
		many[fmt.Sprintf("key-%03d", i)] = strings.Repeat("m", 1000)
	}
	configMap(t, ns, "many", many)
	configMap(t, ns, "twins", map[string]string{"a": "0", "b": "0"})
	secret(t, ns, "key", map[string]string{"key": "k1"})
	create(t, ns, `
metadata: {name: reads, labels: {colour: red}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: $TOOLBOX
    command: [sleep, inf]
    volumeMounts:
    - {name: page, mountPath: /page}
    - {name: key, mountPath: /key}
    - {name: down, mountPath: /down}
    - {name: page, mountPath: /sub, subPath: index}
    - {name: many, mountPath: /many}
  - name: watches
    image: $TOOLBOX
    command:
    - sh
    - -c
    - |
      while :; do
        d=/twins/$(readlink /twins/..data)
        if a=$(cat $d/a 2>/dev/null) && b=$(cat $d/b 2>/dev/null); then
          [ "$a" = "$b" ] || echo "mix of $a and $b"
          [ "$a" = "$last" ] || echo "saw $a"
          last=$a
        fi
        sleep 1ms
      done
    volumeMounts: [{name: twins, mountPath: /twins}]
  volumes:
  - {name: many, configMap: {name: many}}
  - {name: twins, configMap: {name: twins}}
  - {name: page, configMap: {name: page}}
  - {name: key, secret: {secretName: key, defaultMode: 0400}}
  - {name: down, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
`)
	ready(t, ns, "reads")
	if got := inPod(t, ns, "reads", "cat /page/index /page/other /key/key /sub; cat /down/labels; stat -c %04a /key/..data/key"); !strings.HasPrefix(got, "onesamek1one") || !strings.HasSuffix(got, "0400") || !strings.Contains(got, `colour="red"`) {
		t.Errorf("the volumes hold %q", got)
	}
	contains(t, "a write to a configMap's volume", inPod(t, ns, "reads", "touch /page/new 2>&1 || echo read-only"), "read-only")
	equal(t, "keys and bytes", strings.Join(strings.Fields(inPod(t, ns, "reads", "ls /many | wc -l; cat /many/key-* | wc -c")), " "), "1000 1000000")
	patch := func(kind, name, body string) {
		kubectl(t, "patch", kind, "-n", ns, name, "--type=merge", "-p", body)
	}
	begin := time.Now()
	patch("configmap", "many", `{"data":{"key-500":"changed"}}`)
	for i := 1; i <= 5; i++ {
		patch("configmap", "twins", fmt.Sprintf(`{"data":{"a":"%[1]d","b":"%[1]d"}}`, i))
	}
	patch("configmap", "page", `{"data":{"index":"two"}}`)
	patch("secret", "key", `{"stringData":{"key":"k2"}}`)
	_, err := lab.Client.CoreV1().Pods(ns).Patch(t.Context(), "reads", types.MergePatchType, []byte(`{"metadata":{"labels":{"colour":"blue"}}}`), metav1.PatchOptions{})
	testutil.Must(t, err)
	// Before the scheduled remount of volumes, which comes after a minute.
	testutil.Must(t, labtest.Until(t.Context(), 45*time.Second, "the volumes show the new", func(ctx context.Context) error {
		out, err := lab.Kubectl(ctx, "exec", "-n", ns, "reads", "-c", "main", "--", "sh", "-c", "cat /page/index /page/other /key/key /down/labels")
		if err == nil && (!strings.HasPrefix(out.Stdout, "twosamek2") || !strings.Contains(out.Stdout, `colour="blue"`)) {
			err = fmt.Errorf("%q", out.Stdout)
		}
		return err
	}))
	until(t, "the large volume shows the new, and the reader has seen the last twins", func(ctx context.Context) error {
		out, err := lab.Kubectl(ctx, "exec", "-n", ns, "reads", "-c", "main", "--", "cat", "/many/key-500")
		if err != nil {
			return err
		}
		if out.Stdout != "changed" {
			return fmt.Errorf("%.20q", out.Stdout)
		}
		saw, err := readLogs(ctx, ns, "reads", "-c", "watches")
		if err == nil && !strings.Contains(saw, "saw 5\n") {
			err = fmt.Errorf("the reader says %q", saw)
		}
		return err
	})
	if saw := logs(t, ns, "reads", "-c", "watches"); strings.Contains(saw, "mix") {
		t.Errorf("a reader has seen two versions at once: %s", saw)
	}
	t.Logf("live after %s", time.Since(begin).Round(10*time.Millisecond))
	equal(t, "a subPath, which does not follow", inPod(t, ns, "reads", "cat /sub"), "one")
	// A volume with a missing configMap holds the pod, with the kubelet's message.
	create(t, ns, brief("waits", `
  containers: [{name: main, image: $TOOLBOX, command: [sleep, inf], volumeMounts: [{name: late, mountPath: /late}]}]
  volumes: [{name: late, configMap: {name: late}}]
`))
	contains(t, "the event", event(t, ns, "waits", "FailedMount"), "late")
	podIs(t, ns, "waits", 2*time.Minute, "says what its container waits for", func(p *v1.Pod) error {
		if c := labtest.Container(p, "main"); c == nil || c.State.Waiting == nil || !strings.Contains(c.State.Waiting.Message, "late") {
			return errors.New("it does not")
		}
		return nil
	})
	waiting(t, ns, "waits", "main", "ContainerCreating")
	configMap(t, ns, "late", map[string]string{"x": "y"})
	ready(t, ns, "waits")
}

func TestEmptyDirs(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	create(t, ns, brief("scratch", `
  securityContext: {fsGroup: 4321}
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "append /disk/starts x; sleep inf"]
    volumeMounts: [{name: disk, mountPath: /disk}, {name: memory, mountPath: /memory}]
  - name: other
    image: $TOOLBOX
    command: [sleep, inf]
    volumeMounts: [{name: disk, mountPath: /shared}]
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 8Mi}}
`))
	p := ready(t, ns, "scratch")
	contains(t, "the memory volume", inPod(t, ns, "scratch", "mount | grep /memory"), "tmpfs")
	contains(t, "20 MiB into 8", inPod(t, ns, "scratch", "dd if=/dev/zero of=/memory/big bs=1M count=20 2>&1 || echo full"), "full")
	equal(t, "what the containers share", kubectl(t, "exec", "-n", ns, "scratch", "-c", "other", "--", "cat", "/shared/starts"), "x\n")
	dir := filepath.Join(lab.Host(host).Root, "/var/lib/kubelet/pods", string(p.UID), "volumes/kubernetes.io~empty-dir/disk")
	if info, err := os.Stat(dir); err != nil || info.Mode()&os.ModeSetgid == 0 || info.Mode().Perm() != 0o777 {
		t.Errorf("%s: %v %v", dir, info, err)
	}
	// The volume outlives the containers. The kill command may be killed with its container before
	// it ends by itself.
	killed, err := lab.Kubectl(t.Context(), "exec", "-n", ns, "scratch", "--", "kill", "1")
	testutil.Must(t, err)
	if killed.Code != 0 && killed.Code != 137 {
		t.Errorf("kill: exit code %d: %s%s", killed.Code, killed.Stdout, killed.Stderr)
	}
	until(t, "the second start", func(ctx context.Context) error {
		out, err := lab.Kubectl(ctx, "exec", "-n", ns, "scratch", "-c", "other", "--", "cat", "/shared/starts")
		if err == nil && out.Stdout != "x\nx\n" {
			err = fmt.Errorf("%q", out.Stdout)
		}
		return err
	})
}

func TestHostPaths(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	dir := hostDir(t)
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "dir"), 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o644))
	volume := func(name, path, kind string) string {
		return fmt.Sprintf("  - {name: %s, hostPath: {path: %s, type: %s}}\n", name, filepath.Join(dir, path), kind)
	}
	create(t, ns, brief("mounts", `
  containers:
  - name: main
    image: $TOOLBOX
    command: [sleep, inf]
    volumeMounts:
    - {name: dir, mountPath: /dir}
    - {name: file, mountPath: /file, readOnly: true}
    - {name: newdir, mountPath: /newdir}
    - {name: newfile, mountPath: /newfile}
    - {name: any, mountPath: /any}
    - {name: device, mountPath: /null}
  volumes:
`+volume("dir", "dir", "Directory")+volume("file", "file", "File")+volume("newdir", "new/dir", "DirectoryOrCreate")+
		volume("newfile", "newfile", "FileOrCreate")+volume("any", "dir", `""`)+
		`  - {name: device, hostPath: {path: /dev/null, type: CharDevice}}
`))
	ready(t, ns, "mounts")
	got := inPod(t, ns, "mounts", "cat /file; echo made > /dir/made; echo made > /newdir/made; echo made > /newfile; cat /any/made; (echo x > /file) 2>/dev/null || echo read-only")
	equal(t, "in the pod", got, "contentmade\nread-only")
	for _, name := range []string{"dir/made", "new/dir/made", "newfile"} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != "made\n" {
			t.Errorf("%s: %q %v", name, data, err)
		}
	}
	for name, v := range map[string]string{
		"absent": volume("v", "absent", "Directory"), "a-file": volume("v", "file", "Directory"), "no-socket": volume("v", "file", "Socket"),
	} {
		create(t, ns, brief(name, `
  containers: [{name: main, image: $TOOLBOX, command: [sleep, inf], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes:
`+v))
		contains(t, name, event(t, ns, name, "FailedMount"), "hostPath type check failed")
		waiting(t, ns, name, "main", "ContainerCreating")
	}
	// Once the missing path exists, the pod continues by itself.
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "absent"), 0o755))
	readyWithin(t, 2*time.Minute+30*time.Second, ns, "absent")
}

// A mount below a read-only mount is read-only too, if a pod requests it and the node reports that
// its runtime supports it.
func TestRecursiveReadOnly(t *testing.T) {
	parallel(t)
	can := ptr.Deref(features(t).RecursiveReadOnlyMounts, false)
	t.Log("the runtime can:", can)
	ns := namespace(t)
	dir := hostDir(t)
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "below"), 0o777))
	onHost(t, "mount", "-t", "tmpfs", "-o", "size=64k,mode=1777", "tmpfs", filepath.Join(dir, "below"))
	t.Cleanup(func() { onHost(t, "umount", filepath.Join(dir, "below")) })
	for mode, wants := range map[string]v1.RecursiveReadOnlyMode{
		"Disabled": v1.RecursiveReadOnlyDisabled, "IfPossible": v1.RecursiveReadOnlyEnabled, "Enabled": v1.RecursiveReadOnlyEnabled} {
		name := strings.ToLower(mode)
		create(t, ns, brief(name, `
  containers:
  - name: main
    image: $TOOLBOX
    command: [sleep, inf]
    volumeMounts: [{name: d, mountPath: /d, readOnly: true, recursiveReadOnly: `+mode+`, mountPropagation: None}]
  volumes: [{name: d, hostPath: {path: `+dir+`}}]
`))
		if !can && mode == "Enabled" {
			waiting(t, ns, name, "main", "CreateContainerConfigError")
			continue
		}
		if !can {
			wants = v1.RecursiveReadOnlyDisabled
		}
		p := ready(t, ns, name)
		got := inPod(t, ns, name, "(echo x > /d/x) 2>/dev/null && echo above; (echo x > /d/below/x) 2>/dev/null && echo below; true")
		want := map[v1.RecursiveReadOnlyMode]string{v1.RecursiveReadOnlyDisabled: "below", v1.RecursiveReadOnlyEnabled: ""}[wants]
		equal(t, mode+": what was written", got, want)
		var told *v1.RecursiveReadOnlyMode
		for _, m := range p.Status.ContainerStatuses[0].VolumeMounts {
			if m.Name == "d" {
				told = m.RecursiveReadOnly
			}
		}
		if told == nil || *told != wants {
			t.Errorf("%s: the status says %v, want %s", mode, told, wants)
		}
	}
}
