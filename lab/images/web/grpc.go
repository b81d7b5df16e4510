package main

import (
	"encoding/binary"
	"io"
	"net/http"
	"strings"
)

// grpcServer answers Check of the gRPC health protocol for the whole server and for the service
// "web", over HTTP/2 without TLS, as gRPC probes call it.
func grpcServer(addr string, healthy func() bool) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /grpc.health.v1.Health/Check", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		status, message := "0", ""
		switch service, ok := askedService(r.Body); {
		case !ok:
			status, message = "3", "the request is not a HealthCheckRequest"
		case service != "" && service != "web":
			status, message = "5", "unknown service"
		case healthy():
			_, _ = w.Write(checkReply(1)) // SERVING
		default:
			_, _ = w.Write(checkReply(2)) // NOT_SERVING
		}
		w.Header().Set("Grpc-Status", status)
		w.Header().Set("Grpc-Message", message)
	})
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{Addr: addr, Handler: mux, Protocols: protocols}
}

// A gRPC message is a zero byte, four bytes of length, and a protobuf message. A request has at
// most field 1, the service's name; a reply has field 1, the status.
const messageHead = 5

func askedService(body io.Reader) (name string, ok bool) {
	data, err := io.ReadAll(io.LimitReader(body, 256))
	if err != nil || len(data) < messageHead || data[0] != 0 || int(binary.BigEndian.Uint32(data[1:])) != len(data)-messageHead {
		return "", false
	}
	message := string(data[messageHead:])
	if message == "" {
		return "", true
	}
	if len(message) < 2 || message[0] != 1<<3|2 || int(message[1]) != len(message)-2 {
		return "", false
	}
	return strings.Clone(message[2:]), true
}

func checkReply(status byte) []byte { return []byte{0, 0, 0, 0, 2, 1 << 3, status} }
