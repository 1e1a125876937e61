// A runner for Windlass in Go. It is written from two files alone, protos/windlass/coordinator/v1/sessions.proto and
// protos/windlass/types/v1/session.proto; docs/runners.md explains them. Its settings are in the environment:
//
//	WINDLASS_COORDINATORS         the addresses of all coordinators, host:port,host:port
//	WINDLASS_RUNNER_KEY_FILE      the RUNNER key; it is read for every call, so a new key can replace it at any time
//	WINDLASS_TLS_AUTHORITY_FILE   the certificates to trust; without it, connections are not encrypted
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	pb "windlass.example/runner-go/gen/windlass/coordinator/v1"
)

// modules are what this runner can do. Put yours in their place.
var modules = map[string]Module{
	"go.echo@1": {Idempotent: true, Do: echo},
	"go.wait@1": {Idempotent: false, Do: wait},
}

func echo(_ context.Context, grant *pb.RunGrant) (any, error) {
	return json.RawMessage(grant.Inputs), nil
}

func wait(ctx context.Context, grant *pb.RunGrant) (any, error) {
	var config struct{ Seconds float64 }
	if err := json.Unmarshal(grant.Config, &config); err != nil {
		return nil, permanent{err}
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Duration(config.Seconds * float64(time.Second))):
		return map[string]float64{"waited": config.Seconds}, nil
	}
}

func main() {
	places := flag.Int("places", 10, "how many runs of each coordinator go on at once")
	flag.Parse()
	signalled, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	var coordinators []*grpc.ClientConn
	for address := range strings.SplitSeq(os.Getenv("WINDLASS_COORDINATORS"), ",") {
		coordinators = append(coordinators, dial(address))
	}
	runner := NewRunner(modules, *places, coordinators)
	var sessions sync.WaitGroup
	for _, coordinator := range coordinators {
		sessions.Go(func() { runner.Keep(pb.NewRunnerSessionsClient(coordinator)) })
	}
	<-signalled.Done()
	runner.Drain(8 * time.Second)
	sessions.Wait()
}

func dial(address string) *grpc.ClientConn {
	secure := insecure.NewCredentials()
	if file := os.Getenv("WINDLASS_TLS_AUTHORITY_FILE"); file != "" {
		secure = must(credentials.NewClientTLSFromFile(file, ""))
	}
	// A lost connection must be replaced within the grace, so the pauses are shorter than gRPC's own.
	pauses := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second / 4}
	connect := grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: 2 * time.Second})
	key := grpc.WithPerRPCCredentials(keyFile(os.Getenv("WINDLASS_RUNNER_KEY_FILE")))
	return must(grpc.NewClient(address, grpc.WithTransportCredentials(secure), key, connect))
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatalln(err)
	}
	return value
}

// A keyFile holds the key that goes with every call.
type keyFile string

func (file keyFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	key, err := os.ReadFile(string(file))
	return map[string]string{"authorization": "Bearer " + strings.TrimSpace(string(key))}, err
}

func (keyFile) RequireTransportSecurity() bool { return false }
