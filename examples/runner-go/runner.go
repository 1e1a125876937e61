package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "windlass.example/runner-go/gen/windlass/coordinator/v1"
	types "windlass.example/runner-go/gen/windlass/types/v1"
)

// Bytes of an output in a report, of any output, and of a message of an upload; and how often a transfer is tried.
const inlineMax, outputMax, partMax, triesMax = 256 << 10, 64 << 20, 1 << 20, 8

// How many of the newest denied leases are remembered. A coordinator accepts 8,000 reports without an answer, and 4 MiB
// in a frame.
const deniedMax, reportsInFlight, reportsInFrame = 10_000, 4_000, 8

var errStopped, errDraining, errTimeout = errors.New("stopped"), errors.New("drained"), errors.New("timed out")

// The coordinator waits to hear that work has stopped which it revokes for one of these reasons.
var waitsFor = map[string]error{"CANCELLED": errStopped, "TIMEOUT": errStopped, "FAILED": errStopped}

// A Module does the work of a node. It returns a value for JSON, or an error, and ends soon when its context is done.
// Idempotent says that two runs of one piece of work, even at the same time, do no harm.
type Module struct {
	Idempotent bool
	Do         func(ctx context.Context, grant *pb.RunGrant) (any, error)
}

// A permanent error of a module is not tried again. Every other error is.
type permanent struct{ error }

// A run is held until its report is answered, and its lease is named in every beat until then. The report is kept, and
// sent on one session after the other, until a coordinator answers it.
type run struct {
	*types.Lease
	workspace string
	stop      context.CancelCauseFunc
	progress  *pb.RunProgress // nil: the work is over
	report    *pb.RunReport
	// The session that serves the lease, to which the report goes first; and the one on which it was sent last.
	session, sentOn *session
}

// A Runner has the leases of one instance. The mutex guards what follows it, and all fields of the sessions.
type Runner struct {
	modules      map[string]Module
	places       int // for each coordinator: a fixed part, so that none is promised twice
	coordinators []*grpc.ClientConn
	work         context.Context // of all runs
	handBack     context.CancelCauseFunc
	drained      chan struct{}

	mu       sync.Mutex
	changed  chan struct{} // closed, and replaced, when a session may have something to send
	instance string
	// When the newest beat or attach that was answered was sent; and when a stream was lost. Then the others beat at once,
	// to show that the instance lives.
	aliveAt, lostAt      time.Time
	selfFence            time.Duration // of the newest answer to an attach
	draining             bool
	sessions             map[*session]bool
	held, reports        map[string]*run
	denied, deniedBefore map[string]int64 // epochs; up to them, the leases of these ids never begin
}

func NewRunner(modules map[string]Module, places int, coordinators []*grpc.ClientConn) *Runner {
	work, handBack := context.WithCancelCause(context.Background())
	return &Runner{
		modules: modules, places: places, coordinators: coordinators, work: work, handBack: handBack,
		drained: make(chan struct{}), changed: make(chan struct{}), instance: uuid.NewString(),
		sessions: map[*session]bool{}, held: map[string]*run{}, denied: map[string]int64{}, reports: map[string]*run{},
	}
}

func (r *Runner) wake() { close(r.changed); r.changed = make(chan struct{}) }

// Drain takes no more grants, and ends the sessions when each report is answered. What goes on for longer than the
// patience is handed back.
func (r *Runner) Drain(patience time.Duration) {
	time.AfterFunc(patience, func() { r.handBack(errDraining) })
	for isDone, end := false, time.Now().Add(2*patience); !isDone && time.Now().Before(end); time.Sleep(time.Second / 50) {
		r.mu.Lock()
		r.draining = true
		isDone = len(r.held)+len(r.reports) == 0
		r.mu.Unlock()
	}
	close(r.drained)
}

// take begins the granted work, or returns why not. Nothing else begins work.
func (r *Runner) take(s *session, grant *pb.RunGrant) (refusal string) {
	id, epoch := grant.Lease.LeaseId, grant.Lease.Epoch
	known, module := r.held[id], r.modules[grant.Module]
	isOfWorkspace := func(l *run) bool { return l.workspace == grant.Workspace }
	isAtWork := slices.ContainsFunc(slices.Collect(maps.Values(r.held)), isOfWorkspace)
	switch {
	case known != nil && known.Epoch == epoch: // it was delivered twice
		known.session = s
		return ""
	case known != nil && known.Epoch > epoch:
		return "EPOCH_STALE"
	case max(r.denied[id], r.deniedBefore[id]) >= epoch:
		return "NOT_HELD"
	case r.draining:
		return "DRAINING"
	case module.Do == nil:
		return "UNKNOWN_MODULE"
	case time.Since(r.aliveAt) >= s.timing.GetSelfFence().AsDuration(): // the coordinators may have given this instance up
		return "SELF_FENCED"
	case isAtWork && 0 < grant.PlacesMax && int(grant.PlacesMax) <= len(r.held): // the other places are for others
		return "NO_CAPACITY"
	case known != nil:
		r.drop(known, nil)
	}
	ctx, stop := context.WithCancelCause(r.work)
	progress := &pb.RunProgress{RunId: id, Epoch: epoch, StartTime: timestamppb.Now()}
	r.held[id] = &run{Lease: grant.Lease, workspace: grant.Workspace, session: s, stop: stop, progress: progress}
	go r.perform(ctx, r.held[id], module, grant, s.instance)
	return ""
}

// deny remembers that this lease must never begin: its grant may still come, even on another stream.
func (r *Runner) deny(id string, epoch int64) {
	if r.denied[id] = max(epoch, r.denied[id]); len(r.denied) >= deniedMax {
		r.denied, r.deniedBefore = map[string]int64{}, r.denied
	}
}

// revoke stops work whose lease was taken back.
func (r *Runner) revoke(s *session, id string, epoch int64, reason string) {
	r.deny(id, epoch)
	if l := r.held[id]; l != nil && l.Epoch == epoch {
		l.session = s
		r.drop(l, waitsFor[reason])
	}
}

func (r *Runner) drop(l *run, cause error) { delete(r.held, l.LeaseId); l.stop(cause) }

// perform does one run and makes its report.
func (r *Runner) perform(ctx context.Context, l *run, module Module, grant *pb.RunGrant, instance string) {
	head := &types.ReportHead{ReportId: uuid.NewString(), LeaseId: l.LeaseId, Epoch: l.Epoch, InstanceId: instance}
	l.report = &pb.RunReport{Head: head, StartTime: timestamppb.Now()}
	output, err := r.call(ctx, module, grant, &pb.HeldRun{Lease: l.Lease, InstanceId: instance})
	l.report.EndTime = timestamppb.Now()
	setOutcome(l.report, output, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.progress = nil; r.held[l.LeaseId] == l || context.Cause(ctx) == errStopped {
		r.reports[head.ReportId] = l
	}
	r.wake()
}

// answered forgets a report, and the lease that it ended. If its outcome was not understood, another one is reported.
func (r *Runner) answered(s *session, id, refusal string) {
	l := r.reports[id]
	if l == nil || l.sentOn != s {
		return
	}
	delete(r.reports, id)
	if s.inFlight--; refusal == "REPORT_INVALID" && l.report.GetFailed() == nil {
		l.report, l.sentOn = proto.CloneOf(l.report), nil
		l.report.Head.ReportId = uuid.NewString()
		setOutcome(l.report, nil, errors.New("the coordinator did not understand the outcome"))
		r.reports[l.report.Head.ReportId] = l
	} else if r.held[l.LeaseId] == l {
		delete(r.held, l.LeaseId)
	}
}

// call runs the module. A panic is its failure.
func (r *Runner) call(ctx context.Context, m Module, grant *pb.RunGrant, run *pb.HeldRun) (out *pb.Output, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = permanent{fmt.Errorf("%s panicked: %v", grant.Module, panicked)}
		}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(grant.Timeout.AsDuration(), 24*time.Hour), errTimeout)
	defer cancel()
	if err = r.fetch(ctx, run, grant); err == nil {
		var value any
		if value, err = m.Do(ctx, grant); err == nil {
			out, err = r.keep(ctx, run, value)
		}
	}
	if err != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	return out, err
}

func setOutcome(message *pb.RunReport, output *pb.Output, err error) {
	// The message is quoted, because an error may have bytes that no text of a report can have.
	failed := &pb.RunReport_Failed{Type: "ERROR", Message: fmt.Sprintf("%.2000q", err)}
	failed.Class, message.Outcome = pb.ErrorClass_ERROR_CLASS_TRANSIENT, &pb.RunReport_Failed_{Failed: failed}
	switch {
	case err == nil:
		message.Outcome = &pb.RunReport_Succeeded_{Succeeded: &pb.RunReport_Succeeded{Output: output}}
	case errors.Is(err, errStopped):
		message.Outcome = &pb.RunReport_Stopped_{Stopped: &pb.RunReport_Stopped{}}
	case errors.Is(err, errDraining):
		message.Outcome = &pb.RunReport_Released_{Released: &pb.RunReport_Released{Reason: "DRAINING", MayHaveBegun: true}}
	case errors.Is(err, errTimeout):
		failed.Class, failed.Type = pb.ErrorClass_ERROR_CLASS_TIMEOUT, "NODE_TIMEOUT"
	case errors.As(err, &permanent{}):
		failed.Class = pb.ErrorClass_ERROR_CLASS_PERMANENT
	}
}

// A session is one stream to one coordinator. Its attach counts as its first beat.
type session struct {
	instance                     string // under which it attached
	giveUp                       context.CancelCauseFunc
	isLive, isBeating, drainSaid bool          // it is attached; a beat is unanswered; we said that we drain
	timing                       *types.Timing // as the coordinator says in its answer to the attach
	silence                      time.Duration // so long an answer to the attach or to a beat may take
	beatSentAt, heardAt          time.Time
	beatNumber, creditNumber     int64
	received, counted            int64 // the grants that came, and those of which the coordinator knows it
	credit, inFlight             int   // what is left of the newest credit; reports without an answer
	refusals                     []*types.GrantRefusal
}

// Keep has one session after the other with a coordinator, until the runner is drained.
func (r *Runner) Keep(client pb.RunnerSessionsClient) {
	for pause, last := 10*time.Millisecond, time.Second/2; ; pause = min(2*pause, last) {
		s, err := r.converse(client)
		if log.Println("a session has ended:", err); s.isLive {
			// When all streams are lost, there must be another one within the grace.
			pause, last = 10*time.Millisecond, max(s.timing.IdempotentGrace.AsDuration()/6, 10*time.Millisecond)
		}
		select {
		case <-r.drained:
			return
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// converse is one session. Nothing is read from its stream once it is given up.
func (r *Runner) converse(client pb.RunnerSessionsClient) (s *session, err error) {
	ctx, giveUp := context.WithCancelCause(context.Background())
	s = &session{giveUp: giveUp}
	stream, err := client.Session(ctx)
	if err == nil {
		_ = stream.Send(r.attach(s)) // when it fails, Recv says why
		go r.write(ctx, s, stream)
	}
	for err == nil {
		var message *pb.SessionResponse
		if message, err = stream.Recv(); err == nil {
			err = r.receive(s, message)
		}
	}
	giveUp(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, s)
	r.lostAt = time.Now()
	r.wake()
	return s, context.Cause(ctx)
}

// attach names the leases that are held now. No grant that was sent on an earlier stream is read any more.
func (r *Runner) attach(s *session) *pb.SessionRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.instance, s.beatSentAt, s.isBeating, r.sessions[s] = r.instance, time.Now(), true, true
	s.silence = cmp.Or(r.selfFence, 8*time.Second)
	capacity := int32(r.places * len(r.coordinators))
	attach := &types.Attach{Holder: "runner-go", InstanceId: r.instance, Capacity: capacity, WantsRendered: true}
	for name, module := range r.modules {
		if attach.Modules = append(attach.Modules, name); module.Idempotent {
			attach.IdempotentModules = append(attach.IdempotentModules, name)
		}
	}
	for _, l := range r.held {
		attach.Held = append(attach.Held, l.Lease)
	}
	return &pb.SessionRequest{Control: &types.HolderControl{Attach: attach}}
}

// receive reads the parts of a frame in the order that the contract names. An error ends the session.
func (r *Runner) receive(s *session, message *pb.SessionResponse) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.wake()
	control := message.GetControl()
	attached, beat, fault := control.GetAttached(), control.GetBeat(), control.GetFault()
	switch s.heardAt = time.Now(); {
	case s.instance != r.instance:
		return errors.New("the instance has ended")
	case attached != nil && !isSound(attached.Timing):
		return errors.New("the times of the coordinator contradict each other")
	case attached != nil:
		s.isLive, s.timing, r.selfFence = true, attached.Timing, attached.Timing.SelfFence.AsDuration()
		s.silence = 2 * s.timing.Beat.AsDuration()
	}
	if attached != nil || beat.GetRenewed() {
		if s.isBeating = false; s.beatSentAt.After(r.aliveAt) {
			r.aliveAt = s.beatSentAt
		}
	}
	for _, each := range attached.GetRefused() {
		r.revoke(s, each.LeaseId, each.Epoch, each.Reason)
	}
	for _, id := range control.GetTakenReports() {
		r.answered(s, id, "")
	}
	for _, each := range control.GetRefusedReports() {
		log.Println("a report was refused:", each.Reason)
		r.answered(s, each.ReportId, each.Reason)
	}
	for _, grant := range message.GetGrants() {
		s.received, s.credit = s.received+1, s.credit-1
		if reason := r.take(s, grant); reason != "" {
			r.refuse(s, grant.Lease, reason)
		}
	}
	for _, each := range control.GetRevoked() {
		r.revoke(s, each.LeaseId, each.Epoch, each.Reason)
	}
	for _, each := range control.GetClaims() {
		if l := r.held[each.LeaseId]; l != nil && l.Epoch == each.Epoch {
			l.session = s
		} else {
			r.refuse(s, each, "NOT_HELD")
		}
	}
	switch {
	case beat != nil && !beat.Renewed, fault.GetReason() == "INSTANCE_ENDED":
		// All work stops, because others may do it by now. The sessions attach again as a new instance.
		for _, l := range r.held {
			r.drop(l, nil)
		}
		r.instance, r.aliveAt = uuid.NewString(), time.Time{}
		return errors.New("the instance has ended")
	case fault != nil:
		return fmt.Errorf("%s: %s", fault.Reason, fault.Message)
	}
	return nil
}

// isSound says whether the times fit together as the contract promises.
func isSound(t *types.Timing) bool {
	beat, fence, term := t.GetBeat().AsDuration(), t.GetSelfFence().AsDuration(), t.GetTerm().AsDuration()
	grace, closed := t.GetIdempotentGrace().AsDuration(), t.GetClosedGrace().AsDuration()
	areBeats := 0 < beat && 2*beat <= fence && fence < term && term < t.GetGrantedAgain().AsDuration()
	return areBeats && 0 <= grace && grace <= closed
}

func (r *Runner) refuse(s *session, l *types.Lease, reason string) {
	r.deny(l.LeaseId, l.Epoch)
	s.refusals = append(s.refusals, &types.GrantRefusal{LeaseId: l.LeaseId, Epoch: l.Epoch, Reason: reason})
}

// write sends what is owed, until the stream or the runner ends.
func (r *Runner) write(ctx context.Context, s *session, stream grpc.ClientStream) {
	for ctx.Err() == nil {
		frame, changed := r.frame(s)
		if frame != nil && ctx.Err() == nil {
			_ = stream.SendMsg(frame) // when it fails, the reader sees why, and the context is done
			continue
		}
		select {
		case <-r.drained:
			_ = stream.CloseSend()
			time.AfterFunc(time.Second, func() { s.giveUp(errDraining) })
			return
		case <-changed:
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// frame is all that is owed to the coordinator now, or nil. It gives up a stream that is silent.
func (r *Runner) frame(s *session) (frame *pb.SessionRequest, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, beat, free, held := time.Now(), s.timing.GetBeat().AsDuration(), r.places, []*types.Lease{}
	if s.isBeating && min(now.Sub(s.heardAt), now.Sub(s.beatSentAt)) > s.silence || s.instance != r.instance {
		s.giveUp(errors.New("the coordinator is silent, or the instance has ended"))
	}
	if !s.isLive {
		return nil, r.changed
	}
	control := &types.HolderControl{Refusals: s.refusals, Drain: r.draining && !s.drainSaid}
	s.refusals, s.drainSaid, frame = nil, r.draining, &pb.SessionRequest{Control: control}
	for _, each := range r.reports {
		// A report goes to the coordinator that serves its lease, or to any other when that one is gone.
		isOurs := !r.sessions[each.sentOn] && (each.session == s || !r.sessions[each.session])
		if isOurs && s.inFlight < reportsInFlight && len(frame.Reports) < reportsInFrame {
			each.sentOn, s.inFlight, frame.Reports = s, s.inFlight+1, append(frame.Reports, each.report)
		}
	}
	isBeat := !s.isBeating && (s.beatSentAt.Before(r.lostAt) || now.Sub(s.beatSentAt) >= beat)
	for _, l := range r.held {
		if held = append(held, l.Lease); l.progress != nil && isBeat {
			frame.Progress = append(frame.Progress, l.progress)
		}
		if l.progress != nil && l.session == s {
			free--
		}
	}
	if free = max(free, 0); free != s.credit && !r.draining {
		s.credit, s.creditNumber = free, s.creditNumber+1
		control.Credit = &types.Credit{Number: s.creditNumber, Amount: int32(free)}
	}
	if isBeat {
		s.beatNumber, s.beatSentAt, s.isBeating = s.beatNumber+1, now, true
		// A full beat is always right. A runner with thousands of leases would send the changes only.
		control.Beat = &types.Beat{Number: s.beatNumber, Full: true, Held: held, HeldCount: int32(len(held))}
	}
	if s.received == s.counted && proto.Size(control)+len(frame.Reports) == 0 {
		return nil, r.changed
	}
	control.GrantsSeen, s.counted = s.received, s.received
	return frame, r.changed
}

// keep makes an output of the value. A large one is brought to a coordinator before it is reported.
func (r *Runner) keep(ctx context.Context, run *pb.HeldRun, value any) (*pb.Output, error) {
	text, err := json.Marshal(value)
	switch {
	case err != nil || len(text) > outputMax:
		return nil, permanent{errors.Join(fmt.Errorf("the output has %d bytes", len(text)), err)}
	case len(text) <= inlineMax:
		return &pb.Output{Value: &pb.Output_Json{Json: text}}, nil
	}
	var answer *pb.UploadOutputResponse
	err = r.transfer(func(coordinator pb.RunnerOutputsClient) error {
		stream, err := coordinator.UploadOutput(ctx)
		if err != nil {
			return err
		}
		_ = stream.Send(&pb.UploadOutputRequest{Part: &pb.UploadOutputRequest_Run{Run: run}}) // the answer says why it fails
		for part := range slices.Chunk(text, partMax) {
			_ = stream.Send(&pb.UploadOutputRequest{Part: &pb.UploadOutputRequest_Data{Data: part}})
		}
		answer, err = stream.CloseAndRecv()
		return err
	})
	return &pb.Output{Value: &pb.Output_Ref{Ref: answer.GetOutput()}}, err
}

// fetch completes a grant that refers to its config and inputs, because they are large.
func (r *Runner) fetch(ctx context.Context, run *pb.HeldRun, grant *pb.RunGrant) error {
	if grant.Rendered == nil {
		return nil
	}
	return r.transfer(func(coordinator pb.RunnerOutputsClient) error {
		var text []byte
		stream, err := coordinator.DownloadOutput(ctx, &pb.DownloadOutputRequest{Run: run, Key: grant.Rendered.Key})
		for err == nil {
			var part *pb.DownloadOutputResponse
			part, err = stream.Recv()
			text = append(text, part.GetData()...)
		}
		if err != io.EOF {
			return err
		}
		into := (*json.RawMessage)(&grant.Config)
		return json.Unmarshal(text, &struct{ Config, Inputs *json.RawMessage }{into, (*json.RawMessage)(&grant.Inputs)})
	})
}

// transfer asks one coordinator after the other. Any of them answers, and everything may be repeated.
func (r *Runner) transfer(try func(pb.RunnerOutputsClient) error) (err error) {
	for n := range triesMax {
		err = try(pb.NewRunnerOutputsClient(r.coordinators[rand.N(len(r.coordinators))]))
		if code := status.Code(err); code != codes.Unavailable && code != codes.ResourceExhausted {
			break
		}
		time.Sleep(rand.N(50 * time.Millisecond << n))
	}
	return err
}
