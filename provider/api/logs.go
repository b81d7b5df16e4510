package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// logOptions decodes v1.PodLogOptions with a kubelet's status codes: 400 for what cannot be parsed,
// 422 for what is not allowed. An absent option is nil, not zero: tailLines=0 asks for nothing, no
// tailLines for everything. Options that are not decoded: container is in the path, and
// insecureSkipTLSVerifyBackend concerns the API server's connection to the node.
func logOptions(q url.Values) (*v1.PodLogOptions, error) {
	o := &v1.PodLogOptions{}
	bad := func(kind error, name, want string) error {
		return &textError{kind, fmt.Sprintf("%s %q: %s wanted", name, q.Get(name), want)}
	}
	for name, to := range map[string]*bool{"follow": &o.Follow, "previous": &o.Previous, "timestamps": &o.Timestamps} {
		// As apimachinery does: whatever is not false is true.
		v := q.Get(name)
		*to = q.Has(name) && v != "0" && !strings.EqualFold(v, "false")
	}
	if tail := q.Get("tail"); tail != "" { // the old name; "all" means no limit
		q.Del("tailLines")
		if tail != "all" {
			q.Set("tailLines", tail)
		}
	}
	for _, n := range []struct {
		name  string
		to    **int64
		least int64
	}{{"tailLines", &o.TailLines, 0}, {"limitBytes", &o.LimitBytes, 1}, {"sinceSeconds", &o.SinceSeconds, 1}} {
		if v := q.Get(n.name); v != "" {
			i, err := strconv.ParseInt(v, 10, 64)
			kind := ErrInvalid
			if err != nil {
				kind = ErrBadRequest
			}
			if err != nil || i < n.least {
				return nil, bad(kind, n.name, fmt.Sprintf("a number of at least %d", n.least))
			}
			*n.to = &i
		}
	}
	if v := q.Get("sinceTime"); v != "" {
		at, err := time.Parse(time.RFC3339, v)
		if err != nil {
			return nil, bad(ErrBadRequest, "sinceTime", "an RFC 3339 time")
		}
		o.SinceTime = &metav1.Time{Time: at}
	}
	if o.SinceTime != nil && o.SinceSeconds != nil {
		return nil, &textError{ErrInvalid, "at most one of sinceTime and sinceSeconds may be given"}
	}
	stream := v1.LogStreamAll
	if v := q.Get("stream"); v != "" {
		stream = v
	}
	switch stream {
	case v1.LogStreamAll:
	case v1.LogStreamStdout, v1.LogStreamStderr:
		if o.TailLines != nil {
			return nil, &textError{ErrInvalid, "tailLines and one stream cannot be asked for together"}
		}
	default:
		return nil, bad(ErrInvalid, "stream", "All, Stdout or Stderr")
	}
	o.Stream = &stream
	return o, nil
}

func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	o, err := logOptions(r.URL.Query())
	if err != nil {
		fail(w, err)
		return
	}
	p, err := s.pod(r)
	if err != nil {
		fail(w, err)
		return
	}
	name := r.PathValue("container")
	if !hasContainer(p, name) {
		fail(w, &textError{ErrNotFound, fmt.Sprintf("container %q not found in pod %q", name, p.Name)})
		return
	}
	c, err := s.cfg.Pods.Container(r.Context(), p.Namespace, p.Name, p.UID, name, o.Previous)
	if err != nil {
		fail(w, noLog(p, name, o.Previous, err))
		return
	}
	out := &flushWriter{w: w}
	if s.cfg.NoLogStreams {
		*o.Stream = v1.LogStreamAll
	}
	var stdout, stderr io.Writer = out, out
	switch *o.Stream {
	case v1.LogStreamStdout:
		stderr = nil
	case v1.LogStreamStderr:
		stdout = nil
	}
	running := func(ctx context.Context) (bool, error) {
		if o.Previous {
			return false, nil
		}
		now, err := s.cfg.Pods.Container(ctx, p.Namespace, p.Name, p.UID, name, false)
		switch {
		case errors.Is(err, ErrNotFound):
			return false, nil
		case err != nil:
			return false, err
		}
		return now.ID == c.ID && now.Running, nil
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	err = s.cfg.Logs(r.Context(), c.LogPath, o, running, stdout, stderr)
	switch {
	case err == nil || r.Context().Err() != nil:
	case out.wrote:
		fmt.Fprintln(out, err) // the status line is sent already, so write the error to the log output
	default:
		fail(w, err)
	}
}

// noLog explains in the kubelet's words why a container has no log yet.
func noLog(p *v1.Pod, name string, previous bool, err error) error {
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	if previous {
		return &textError{ErrBadRequest, fmt.Sprintf("previous terminated container %q in pod %q not found", name, p.Name)}
	}
	if st := pod.FindStatus(&p.Status, name); st != nil && st.State.Waiting != nil {
		why := st.State.Waiting.Reason
		switch why {
		case "ErrImagePull":
			why = "image can't be pulled"
		case "ImagePullBackOff":
			why = "trying and failing to pull image"
		}
		return &textError{ErrBadRequest, fmt.Sprintf("container %q in pod %q is waiting to start: %s", name, p.Name, why)}
	}
	return &textError{ErrBadRequest, fmt.Sprintf("container %q in pod %q is not available", name, p.Name)}
}

// flushWriter flushes each write, so that a followed log arrives as it grows.
type flushWriter struct {
	w     http.ResponseWriter
	wrote bool
}

func (f *flushWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil // a write would send the status line
	}
	f.wrote = true
	n, err := f.w.Write(p)
	if fl, ok := f.w.(http.Flusher); ok && err == nil {
		fl.Flush()
	}
	return n, err
}

// systemLogs serves the logs of the host.
func (s *Server) systemLogs(w http.ResponseWriter, r *http.Request) {
	if s.cfg.SystemLogs == nil {
		http.Error(w, "logs endpoint is disabled.", http.StatusMethodNotAllowed)
		return
	}
	s.cfg.SystemLogs.ServeHTTP(w, r)
}
