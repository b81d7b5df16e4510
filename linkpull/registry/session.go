package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/bowline-k8s/bowline/linkpull/oci"
)

// Auth are the credentials for a registry.
type Auth struct{ Username, Password string }

// session is what requests for one repository with one credential share.
type session struct {
	client     *Client
	registry   string // as in the image's name
	repository string // without the registry
	auth       *Auth  // nil: none

	mu     sync.Mutex
	header string // the Authorization that the registry last accepted
}

// get requests what the repository has at path, and authenticates when the registry demands it. The caller
// closes the body of the response, whose status is 200 or 206.
func (s *session) get(ctx context.Context, what, path string, header http.Header) (*http.Response, error) {
	address := s.client.base(s.registry) + "/v2/" + s.repository + path
	s.mu.Lock()
	used := s.header
	s.mu.Unlock()
	resp, err := s.send(ctx, what, address, used, header)
	if err != nil {
		return nil, err
	}
	// The challenge of a server that the registry redirected to is not the registry's.
	if resp.StatusCode == http.StatusUnauthorized && resp.Request.URL.Host == hostOf(address) {
		challenges := parseChallenges(resp.Header.Values("WWW-Authenticate"))
		refused := refusal(what, resp)
		next, err := s.answer(ctx, challenges)
		if err != nil {
			return nil, err
		}
		if next == "" {
			return nil, refused
		}
		s.mu.Lock()
		s.header = next
		s.mu.Unlock()
		if resp, err = s.send(ctx, what, address, next, header); err != nil {
			return nil, err
		}
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent {
		return nil, refusal(what, resp)
	}
	return resp, nil
}

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}

func (s *session) send(ctx context.Context, what, address, authorization string,
	header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, &Error{Kind: Malformed, What: what, Err: err}
	}
	for name, values := range header {
		req.Header[name] = values
	}
	req.Header.Set("User-Agent", "bowline")
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	resp, err := s.client.http.Do(req)
	if err != nil {
		return nil, failed(what, cause(ctx, err))
	}
	return resp, nil
}

// cause leaves the address out of a client's error: it may have a signature of a redirect in it.
func cause(ctx context.Context, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// answer returns the Authorization for the first challenge that can be met; empty: for none.
func (s *session) answer(ctx context.Context, challenges []challenge) (string, error) {
	for _, c := range challenges {
		switch c.scheme {
		case "bearer":
			return s.token(ctx, c.params)
		case "basic":
			if s.auth != nil {
				return s.auth.basic(), nil
			}
		}
	}
	return "", nil
}

func (a *Auth) basic() string {
	req := http.Request{Header: http.Header{}}
	req.SetBasicAuth(a.Username, a.Password)
	return req.Header.Get("Authorization")
}

// token gets a token to pull from the repository, with the credentials if there are any.
func (s *session) token(ctx context.Context, params map[string]string) (string, error) {
	what := "token for " + s.registry + "/" + s.repository
	realm, err := url.Parse(params["realm"])
	secure := strings.HasPrefix(s.client.base(s.registry), "https:")
	if err != nil || realm.Host == "" || realm.Scheme != "https" && (realm.Scheme != "http" || secure) {
		return "", &Error{Kind: Refused, What: what, Err: errRealm}
	}
	// The scope is what is needed, and not what the registry proposes: the token then opens nothing else.
	q := realm.Query()
	q.Set("scope", "repository:"+s.repository+":pull")
	if params["service"] != "" {
		q.Set("service", params["service"])
	}
	realm.RawQuery, realm.User, realm.Fragment = q.Encode(), nil, ""
	authorization := ""
	if s.auth != nil {
		authorization = s.auth.basic()
	}
	resp, err := s.send(ctx, what, realm.String(), authorization, nil)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", refusal(what, resp)
	}
	defer resp.Body.Close()
	data, err := readAll(resp.Body, maxToken)
	if err != nil {
		return "", failed(what, cause(ctx, err))
	}
	var reply struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if json.Unmarshal(data, &reply) != nil || reply.Token == "" && reply.AccessToken == "" {
		return "", &Error{Kind: Malformed, What: what, Status: resp.StatusCode, Err: errToken}
	}
	return "Bearer " + cmp.Or(reply.Token, reply.AccessToken), nil
}

var (
	errRealm = errors.New("the registry names no token server, or one without TLS")
	errToken = errors.New("the answer has no token")
)

// refusal makes an Error of a response that is no success, and closes it.
func refusal(what string, resp *http.Response) *Error {
	defer resp.Body.Close()
	e := &Error{Kind: kindOf(resp.StatusCode), What: what, Status: resp.StatusCode}
	// A body may not come at all; then the status says enough.
	stop := time.AfterFunc(time.Second, func() { resp.Body.Close() })
	defer stop.Stop()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 8<<10))
	var body struct {
		Errors []struct{ Code, Message string }
	}
	if err == nil && json.Unmarshal(data, &body) == nil && len(body.Errors) > 0 {
		e.Said = printable(cmp.Or(body.Errors[0].Message, body.Errors[0].Code))
	}
	return e
}

// printable keeps the beginning of a registry's message, without what a terminal could act on.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	return strings.ToValidUTF8(s[:min(len(s), maxSaid)], "")
}

// readAll reads at most limit bytes; the error is oci.ErrTooLarge beyond them.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("more than %d bytes: %w", limit, oci.ErrTooLarge)
	}
	return data, nil
}
