package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "windlass.example/runner-go/gen/windlass/coordinator/v1"
	types "windlass.example/runner-go/gen/windlass/types/v1"
)

const inlineMax, deniedMax = 256 << 10, 10_000 // bytes of an output in a report; denied leases that are remembered

var (
	errTaken    = errors.New("the lease was taken back")
	errEnded    = errors.New("the instance has ended")
	errDraining = errors.New("the runner drains")
	errTimeout  = errors.New("the node's timeout has passed")
)

// A Module does the work of a node. It returns a value for JSON, or an error, and ends soon when its context is done.
// Idempotent says that two runs of one piece of work, even at the same time, do no harm.
type Module struct {
	Idempotent bool
	Do         func(ctx context.Context, grant *pb.RunGrant) (any, error)
}

// A permanent error of a module is not tried again. Every other error is.
type permanent struct{ error }

type leaseKey struct {
	id    string
	epoch int64
}

// A lease is held until its report is answered, and named in every beat until then.
type lease struct {
	leaseKey
	session  *session // the one that serves the lease: the report goes there first
	stop     context.CancelCauseFunc
	stopping bool            // the coordinator waits to hear that the work has stopped
	progress *pb.RunProgress // nil: the work is over
}

// A report is kept, and sent on one session after the other, until a coordinator answers it.
type report struct {
	*pb.RunReport
	home, sentOn *session
}

// A Runner has the leases of one instance. The mutex guards what follows it, and all fields of the sessions.
type Runner struct {
	modules              map[string]Module
	places, coordinators int // places for each coordinator: a fixed part, so that none is promised twice
	drained              chan struct{}

	mu          sync.Mutex
	changed     chan struct{} // closed, and replaced, when a session may have something to send
	instance    string
	aliveAt     time.Time // when the newest beat or attach that was answered was sent
	draining    bool
	sessions    map[*session]bool
	held        map[string]*lease
	denied      map[leaseKey]bool
	deniedOrder []leaseKey
	reports     map[string]*report // by their ids
}

func NewRunner(modules map[string]Module, places, coordinators int) *Runner {
	return &Runner{
		modules: modules, places: places, coordinators: coordinators, instance: uuid.NewString(),
		drained: make(chan struct{}), changed: make(chan struct{}), sessions: map[*session]bool{},
		held: map[string]*lease{}, denied: map[leaseKey]bool{}, reports: map[string]*report{},
	}
}

func (r *Runner) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Drain takes no more grants, and ends the sessions when each report is answered. What goes on for longer than the
// patience is handed back.
func (r *Runner) Drain(patience time.Duration) {
	handBack, deadline := time.Now().Add(patience), time.Now().Add(2*patience)
	for isDrained := false; !isDrained && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		r.mu.Lock()
		r.draining = true
		for _, l := range r.held {
			if time.Now().After(handBack) {
				l.stop(errDraining)
			}
		}
		isDrained = len(r.held)+len(r.reports) == 0
		r.mu.Unlock()
	}
	close(r.drained)
}

// take begins the granted work, or returns why not. Nothing else begins work.
func (r *Runner) take(s *session, grant *pb.RunGrant) (refusal string) {
	key := leaseKey{grant.Lease.LeaseId, grant.Lease.Epoch}
	known, module := r.held[key.id], r.modules[grant.Module]
	switch {
	case known != nil && known.epoch == key.epoch: // it was delivered twice
		known.session = s
		return ""
	case known != nil && known.epoch > key.epoch:
		return "EPOCH_STALE"
	case r.denied[key]:
		return "NOT_HELD"
	case r.draining:
		return "DRAINING"
	case module.Do == nil:
		return "UNKNOWN_MODULE"
	case time.Since(r.aliveAt) >= s.fence: // the coordinators may have given this instance up
		return "SELF_FENCED"
	case known != nil:
		r.drop(known)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	progress := &pb.RunProgress{RunId: key.id, Epoch: key.epoch, StartTime: timestamppb.Now()}
	r.held[key.id] = &lease{leaseKey: key, session: s, stop: stop, progress: progress}
	go r.perform(ctx, r.held[key.id], module, grant, s.instance)
	return ""
}

// deny remembers that this lease must never begin: its grant may still come, even on another stream.
func (r *Runner) deny(key leaseKey) {
	r.denied[key] = true
	if r.deniedOrder = append(r.deniedOrder, key); len(r.deniedOrder) > deniedMax {
		delete(r.denied, r.deniedOrder[0])
		r.deniedOrder = r.deniedOrder[1:]
	}
}

// revoke stops work whose lease was taken back.
func (r *Runner) revoke(s *session, key leaseKey, reason string) {
	r.deny(key)
	if l := r.held[key.id]; l != nil && l.epoch == key.epoch {
		l.session = s
		l.stopping = l.progress != nil && (reason == "CANCELLED" || reason == "TIMEOUT" || reason == "FAILED")
		r.drop(l)
	}
}

func (r *Runner) drop(l *lease) {
	delete(r.held, l.id)
	l.stop(errTaken)
}

// endInstance stops all work, because others may do it by now. The sessions attach again as a new instance.
func (r *Runner) endInstance() error {
	for _, l := range r.held {
		r.drop(l)
	}
	r.instance, r.aliveAt = uuid.NewString(), time.Time{}
	for s := range r.sessions {
		s.giveUp(errEnded)
	}
	return errEnded
}

// perform does one run and makes its report.
func (r *Runner) perform(ctx context.Context, l *lease, module Module, grant *pb.RunGrant, instance string) {
	message := &pb.RunReport{StartTime: timestamppb.Now()}
	message.Head = &types.ReportHead{LeaseId: l.id, Epoch: l.epoch, InstanceId: instance}
	output, err := call(ctx, module, grant)
	message.EndTime = timestamppb.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.wake()
	l.progress = nil
	if setOutcome(message, output, err); l.stopping {
		message.Outcome = &pb.RunReport_Stopped_{Stopped: &pb.RunReport_Stopped{}}
	} else if r.held[l.id] != l {
		return
	}
	message.Head.ReportId = uuid.NewString()
	r.reports[message.Head.ReportId] = &report{RunReport: message, home: l.session}
}

// call runs the module. A panic is its failure.
func call(ctx context.Context, module Module, grant *pb.RunGrant) (output []byte, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = permanent{fmt.Errorf("%s panicked: %v", grant.Module, panicked)}
		}
	}()
	if grant.HasTemplates || grant.RenderOnly {
		return nil, permanent{errors.New("this runner cannot render templates")}
	}
	if grant.Timeout != nil {
		timed, cancel := context.WithTimeoutCause(ctx, grant.Timeout.AsDuration(), errTimeout)
		defer cancel()
		ctx = timed
	}
	value, err := module.Do(ctx, grant)
	if err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	if output, err = json.Marshal(value); len(output) > inlineMax {
		err = permanent{fmt.Errorf("the output has %d bytes", len(output))}
	}
	return output, err
}

func setOutcome(message *pb.RunReport, output []byte, err error) {
	failed := &pb.RunReport_Failed{Class: pb.ErrorClass_ERROR_CLASS_TRANSIENT, Type: "ERROR", Message: fmt.Sprint(err)}
	message.Outcome = &pb.RunReport_Failed_{Failed: failed}
	switch {
	case err == nil:
		result := &pb.Output{Value: &pb.Output_Json{Json: output}}
		message.Outcome = &pb.RunReport_Succeeded_{Succeeded: &pb.RunReport_Succeeded{Output: result}}
	case errors.Is(err, errDraining):
		released := &pb.RunReport_Released{Reason: "DRAINING", MayHaveBegun: true}
		message.Outcome = &pb.RunReport_Released_{Released: released}
	case errors.Is(err, errTimeout):
		failed.Class, failed.Type = pb.ErrorClass_ERROR_CLASS_TIMEOUT, "NODE_TIMEOUT"
	case errors.As(err, &permanent{}):
		failed.Class = pb.ErrorClass_ERROR_CLASS_PERMANENT
	}
}
