package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/test/labtest"
)

func TestLogs(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	create(t, ns, brief("talks", `
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "for i in 1 2 3 4 5; do echo early $i; done; echo to-stderr >&2; sleep 4; echo late; sleep inf"]
  - {name: other, image: $TOOLBOX, command: [sh, -c, "echo other; sleep inf"]}
`))
	ready(t, ns, "talks")
	until(t, "the late line", func(ctx context.Context) error {
		all, err := readLogs(ctx, ns, "talks", "-c", "main")
		if err == nil && !strings.Contains(all, "late") {
			err = fmt.Errorf("only %q", all)
		}
		return err
	})
	all := logs(t, ns, "talks", "-c", "main")
	for _, line := range []string{"early 1\n", "early 5\n", "to-stderr\n", "late\n"} {
		if strings.Count(all, line) != 1 {
			t.Errorf("%q is not once in %q", line, all)
		}
	}
	equal(t, "the last line", logs(t, ns, "talks", "-c", "main", "--tail=1"), "late\n")
	if got := logs(t, ns, "talks", "-c", "main", "--since=2s"); strings.Contains(got, "early") {
		t.Errorf("since 2 s: %q", got)
	}
	equal(t, "3 bytes", logs(t, ns, "talks", "-c", "other", "--limit-bytes=3"), "oth")
	if got := logs(t, ns, "talks", "-c", "main", "--tail=1", "--timestamps"); !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\S+Z late\n$`).MatchString(got) {
		t.Errorf("with a time: %q", got)
	}
	equal(t, "the other container's log", logs(t, ns, "talks", "-c", "other"), "other\n")
}

func TestLogsFollowAndPrevious(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	create(t, ns, `
metadata: {name: counts}
spec:
  restartPolicy: Never
  containers: [{name: main, image: $TOOLBOX, command: [count, -i, "0.3", -n, "10", line]}]
`)
	until(t, "a log", func(ctx context.Context) error {
		out, err := lab.Kubectl(ctx, "logs", "-n", ns, "counts")
		if err == nil && (out.Code != 0 || out.Stdout == "") {
			err = fmt.Errorf("none: %s", out.Stderr)
		}
		return err
	})
	// It ends by itself, with the container, and has missed nothing.
	followed := logs(t, ns, "counts", "-f")
	equal(t, "lines followed", strings.Count(followed, "\n"), 10)
	contains(t, "what was followed", followed, "10")
	create(t, ns, brief("again", `
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "test -f /scratch/was && echo second && sleep inf; echo first; touch /scratch/was; exit 1"]
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes: [{name: scratch, emptyDir: {}}]
`))
	until(t, "the second run", func(ctx context.Context) error {
		out, err := lab.Kubectl(ctx, "logs", "-n", ns, "again")
		if err == nil && out.Stdout != "second\n" {
			err = fmt.Errorf("%q %s", out.Stdout, out.Stderr)
		}
		return err
	})
	equal(t, "the run before", logs(t, ns, "again", "--previous"), "first\n")
}

// The sweep keeps the previous instance and its log, and removes older ones.
func TestPreviousLogsAfterASweep(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	p := create(t, ns, brief("thrice", `
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "test -f /scratch/b && echo third && sleep inf; test -f /scratch/a && touch /scratch/b && echo second && exit 1; echo first; touch /scratch/a; exit 1"]
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes: [{name: scratch, emptyDir: {}}]
`))
	dir := filepath.Join(lab.Host(host).Root, "var/log/pods", ns+"_thrice_"+string(p.UID), "main")
	// Two back-offs and the period of the sweep.
	testutil.Must(t, labtest.Until(t.Context(), 3*time.Minute, "the first instance and its log are swept away while the third runs", func(ctx context.Context) error {
		list, err := runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: map[string]string{pod.LabelPodUID: string(p.UID)}})
		if err != nil {
			return err
		}
		var attempts []uint32
		for _, c := range list {
			attempts = append(attempts, c.Metadata.GetAttempt())
		}
		slices.Sort(attempts)
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		var files []string
		for _, e := range entries {
			files = append(files, e.Name())
		}
		if !slices.Equal(attempts, []uint32{1, 2}) || !slices.Equal(files, []string{"1.log", "2.log"}) {
			return fmt.Errorf("instances %v, logs %v", attempts, files)
		}
		return nil
	}))
	equal(t, "the run before", logs(t, ns, "thrice", "--previous"), "second\n")
}

func TestExecAttachPortForward(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	create(t, ns, brief("works", `
  containers:
  - {name: main, image: $TOOLBOX, command: [sleep, inf]}
  - {name: web, image: $WEB}
`))
	create(t, ns, brief("listens", `
  containers: [{name: main, image: $TOOLBOX, stdin: true, stdinOnce: true, command: [sh, -c, "cat | while read line; do echo heard $line; done"]}]
  restartPolicy: Never
`))
	ready(t, ns, "works")

	t.Run("exec", func(t *testing.T) {
		out, err := lab.Kubectl(t.Context(), "exec", "-n", ns, "works", "-c", "main", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
		testutil.Must(t, err)
		if out.Stdout != "out\n" || !strings.HasPrefix(out.Stderr, "err\n") || out.Code != 7 {
			t.Errorf("stdout %q, stderr %q, exit code %d", out.Stdout, out.Stderr, out.Code)
		}
	})
	t.Run("exec with stdin", func(t *testing.T) {
		input := strings.Repeat("0123456789abcdef\n", 20000) // more than any buffer on the way
		out, err := lab.KubectlIn(t.Context(), input, "exec", "-i", "-n", ns, "works", "-c", "main", "--", "cat")
		testutil.Must(t, err)
		if out.Stdout != input || out.Code != 0 {
			t.Errorf("%d bytes went, %d came; exit code %d: %s", len(input), len(out.Stdout), out.Code, out.Stderr)
		}
	})
	t.Run("exec of what is not there", func(t *testing.T) {
		out, err := lab.Kubectl(t.Context(), "exec", "-n", ns, "works", "-c", "main", "--", "/no/such/program")
		testutil.Must(t, err)
		if out.Code == 0 || !strings.Contains(out.Stderr, "/no/such/program") {
			t.Errorf("exit code %d: %s", out.Code, out.Stderr)
		}
	})
	t.Run("attach", func(t *testing.T) {
		ready(t, ns, "listens")
		out, err := lab.KubectlIn(t.Context(), "one\ntwo\n", "attach", "-i", "-n", ns, "listens")
		testutil.Must(t, err)
		contains(t, fmt.Sprintf("stdout, with exit code %d and %q on stderr", out.Code, out.Stderr), out.Stdout, "heard one\n", "heard two\n")
	})
	t.Run("port-forward", func(t *testing.T) {
		for i := range 2 { // the second one shows that the first has closed its port
			contains(t, fmt.Sprint("attempt ", i), forwarded(t, ns, "works"), "works\nversion v1")
		}
	})
}

// forwarded requests the pod's port 8080 through kubectl port-forward.
func forwarded(t *testing.T, ns, pod string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := lab.Command(ctx, "kubectl", "port-forward", "-n", ns, pod, ":8080")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	defer func() { cancel(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("kubectl port-forward: %v: %s", err, &stderr)
	}
	port := regexp.MustCompile(`127\.0\.0\.1:(\d+)`).FindStringSubmatch(line)
	if port == nil {
		t.Fatalf("kubectl port-forward says %q", line)
	}
	return get(t, ctx, http.DefaultClient, "http://127.0.0.1:"+port[1]+"/", "", http.StatusOK)
}

// get requests url and expects the code; token, if not empty, is the bearer token.
func get(t *testing.T, ctx context.Context, client *http.Client, url, token string, code int) string {
	t.Helper()
	got, text, err := send(ctx, client, http.MethodGet, url, token)
	if err != nil || got != code {
		t.Errorf("%s: %d, not %d: %s (%v)", url, got, code, text, err)
	}
	return text
}

// send sends a request, with token as the bearer token if it is not empty, and returns the status
// code and the text of the answer.
func send(ctx context.Context, client *http.Client, method, url, token string) (code int, text string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}
