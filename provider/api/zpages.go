package api

import (
	"fmt"
	"maps"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	flagz "k8s.io/apiserver/pkg/server/flagz/api/v1beta1"
	statusz "k8s.io/apiserver/pkg/server/statusz/api/v1beta1"
)

// component is the component that the z-pages are of, as clients of a kubelet expect it.
const component = "kubelet"

const zpageHeader = `
%s %s
Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.
`

// statusz shows since when the process runs, its version, and the paths of the API.
func (s *Server) statusz(w http.ResponseWriter, r *http.Request) {
	var paths []string
	for _, route := range s.routes() {
		if p := route.patterns[0]; p != "/" && slices.Contains(route.methods, http.MethodGet) && !strings.Contains(p, "{") {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	status := statusz.Statusz{
		TypeMeta: metav1.TypeMeta{APIVersion: statusz.SchemeGroupVersion.String(), Kind: "Statusz"}, ObjectMeta: metav1.ObjectMeta{Name: component},
		StartTime: metav1.NewTime(s.started), UptimeSeconds: int64(time.Since(s.started).Seconds()),
		GoVersion: runtime.Version(), BinaryVersion: s.cfg.Version(), Paths: paths,
	}
	writeZPage(w, r, "statusz", status, func() string {
		return fmt.Sprintf("\nStarted: %s\nUp: %s\nGo version: %s\nBinary version: %s\n\nPaths: %s\n", status.StartTime.Time.Format(time.UnixDate),
			(time.Duration(status.UptimeSeconds) * time.Second).String(), status.GoVersion, status.BinaryVersion, strings.Join(paths, " "))
	})
}

// flagz shows the flags of the process.
func (s *Server) flagz(w http.ResponseWriter, r *http.Request) {
	flags := flagz.Flagz{
		TypeMeta: metav1.TypeMeta{APIVersion: flagz.SchemeGroupVersion.String(), Kind: "Flagz"}, ObjectMeta: metav1.ObjectMeta{Name: component}, Flags: s.cfg.Flags,
	}
	writeZPage(w, r, "flagz", flags, func() string {
		var b strings.Builder
		for _, name := range slices.Sorted(maps.Keys(flags.Flags)) {
			fmt.Fprintf(&b, "%s=%s\n", name, flags.Flags[name])
		}
		return b.String()
	})
}

// writeZPage answers with the text, or with the object if the caller accepts its type.
func writeZPage(w http.ResponseWriter, r *http.Request, page string, object any, text func() string) {
	accepted := r.Header.Get("Accept")
	if accepted == "" {
		accepted = "text/plain"
	}
	for part := range strings.SplitSeq(accepted, ",") {
		kind, params, err := mime.ParseMediaType(part)
		switch {
		case err != nil:
		case kind == "text/plain", kind == "text/*", kind == "*/*":
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			fmt.Fprintf(w, zpageHeader, component, page)
			fmt.Fprint(w, text())
			return
		case kind == "application/json" && params["g"] == statusz.GroupName && params["v"] == "v1beta1" && strings.EqualFold(params["as"], page):
			writeJSON(w, object)
			return
		}
	}
	http.Error(w, fmt.Sprintf("only text/plain and application/json;g=%s;v=v1beta1;as=%s are accepted", statusz.GroupName, strings.ToUpper(page[:1])+page[1:]), http.StatusNotAcceptable)
}
