package api

import (
	"context"
	"errors"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrNotFound: the pod, container or log does not exist. Answered with 404.
	ErrNotFound = errors.New("not found")
	// ErrBadRequest: the request is malformed or impossible. Answered with 400.
	ErrBadRequest = errors.New("bad request")
	// ErrInvalid: the request was understood, but is not allowed. Answered with 422.
	ErrInvalid = errors.New("invalid request")
	// ErrUnavailable: the machine or its runtime does not answer. Answered with 503.
	ErrUnavailable = errors.New("unavailable")
)

// textError is an error with a text for the caller and a sentinel as its kind.
type textError struct {
	kind error
	text string
}

func (e *textError) Error() string { return e.text }
func (e *textError) Unwrap() error { return e.kind }

func statusOf(err error) int {
	switch {
	case errors.Is(err, ErrBadRequest):
		return http.StatusBadRequest
	case errors.Is(err, ErrInvalid):
		return http.StatusUnprocessableEntity
	case errors.Is(err, ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, ErrUnavailable):
		return http.StatusServiceUnavailable
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	}
	// The runtime's gRPC codes, mapped as cri-streaming does.
	var g interface{ GRPCStatus() *status.Status }
	if errors.As(err, &g) {
		switch g.GRPCStatus().Code() {
		case codes.NotFound:
			return http.StatusNotFound
		case codes.ResourceExhausted:
			return http.StatusTooManyRequests
		case codes.Unavailable:
			return http.StatusServiceUnavailable
		case codes.DeadlineExceeded:
			return http.StatusGatewayTimeout
		}
	}
	return http.StatusInternalServerError
}

func fail(w http.ResponseWriter, err error) { http.Error(w, err.Error(), statusOf(err)) }
