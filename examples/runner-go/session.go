package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	pb "windlass.example/runner-go/gen/windlass/coordinator/v1"
	types "windlass.example/runner-go/gen/windlass/types/v1"
)

const reportsInFlight, reportsInFrame = 4_000, 8 // a coordinator accepts 8,000 without an answer, and 4 MiB in a frame

// A session is one stream to one coordinator. Its attach counts as its first beat.
type session struct {
	instance                 string // under which it attached
	giveUp                   context.CancelCauseFunc
	isLive, drainSaid        bool // the attach is answered; the coordinator knows that we drain
	beatOwed, isBeating      bool // a beat is due; a beat waits for its answer
	beatEvery, fence         time.Duration
	beatSentAt, heardAt      time.Time
	beatNumber, creditNumber int64
	received, counted        int64 // the grants that came, and those of which the coordinator knows it
	credit, inFlight         int   // what is left of the newest credit; reports without an answer
	refusals                 []*types.GrantRefusal
}

// Keep has one session after the other with a coordinator, until the runner is drained.
func (r *Runner) Keep(client pb.RunnerSessionsClient) {
	const first, last = 10 * time.Millisecond, time.Second
	for pause := first; ; pause = min(2*pause, last) {
		wasLive, err := r.converse(client)
		if log.Println("a session has ended:", err); wasLive {
			pause = first
		}
		select {
		case <-r.drained:
			return
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// converse is one session. Nothing is read from its stream once it is given up.
func (r *Runner) converse(client pb.RunnerSessionsClient) (wasLive bool, err error) {
	key, err := os.ReadFile(os.Getenv("WINDLASS_RUNNER_KEY_FILE"))
	if err != nil {
		return false, err
	}
	ctx, giveUp := context.WithCancelCause(context.Background())
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(string(key)))
	s := &session{giveUp: giveUp, beatEvery: 3 * time.Second}
	attach := r.attach(s)
	defer r.lost(s)
	stream, err := client.Session(ctx)
	var writer sync.WaitGroup
	if err == nil {
		_ = stream.Send(attach) // when it fails, Recv says why
		writer.Go(func() { r.write(ctx, s, stream) })
	}
	for err == nil {
		var message *pb.SessionResponse
		if message, err = stream.Recv(); err == nil {
			err = r.receive(s, message)
		}
	}
	giveUp(err)
	writer.Wait()
	return s.isLive, context.Cause(ctx)
}

// attach names the leases that are held now. No grant that was sent on an earlier stream is read any more.
func (r *Runner) attach(s *session) *pb.SessionRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.instance, s.beatSentAt, s.isBeating, r.sessions[s] = r.instance, time.Now(), true, true
	capacity := int32(r.places * r.coordinators)
	attach := &types.Attach{Holder: "runner-go", InstanceId: r.instance, Capacity: capacity, Held: r.leases()}
	for name, module := range r.modules {
		attach.Modules = append(attach.Modules, name)
		if module.Idempotent {
			attach.IdempotentModules = append(attach.IdempotentModules, name)
		}
	}
	return &pb.SessionRequest{Control: &types.HolderControl{Attach: attach}}
}

func (r *Runner) leases() (leases []*types.Lease) {
	for _, l := range r.held {
		leases = append(leases, &types.Lease{LeaseId: l.id, Epoch: l.epoch})
	}
	return leases
}

// lost sends the reports of a stream again on another. The others beat at once, to show that the instance lives.
func (r *Runner) lost(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, s)
	for _, each := range r.reports {
		if each.sentOn == s {
			each.sentOn = nil
		}
	}
	for other := range r.sessions {
		other.beatOwed = true
	}
	r.wake()
}

// receive reads the parts of a frame in the order that the contract names. An error ends the session.
func (r *Runner) receive(s *session, message *pb.SessionResponse) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.wake()
	control := message.GetControl()
	attached, beat, fault := control.GetAttached(), control.GetBeat(), control.GetFault()
	if s.instance != r.instance {
		return errEnded
	}
	s.heardAt = time.Now()
	if attached != nil {
		s.isLive, s.beatOwed = true, true
		s.beatEvery, s.fence = attached.Timing.Beat.AsDuration(), attached.Timing.SelfFence.AsDuration()
	}
	if attached != nil || beat.GetRenewed() {
		s.isBeating = false
		if s.beatSentAt.After(r.aliveAt) {
			r.aliveAt = s.beatSentAt
		}
	}
	for _, each := range attached.GetRefused() {
		r.revoke(s, leaseKey{each.LeaseId, each.Epoch}, each.Reason)
	}
	for _, id := range control.GetTakenReports() {
		r.answered(s, id)
	}
	for _, each := range control.GetRefusedReports() {
		log.Println("a report was refused:", each.Reason)
		r.answered(s, each.ReportId)
	}
	for _, grant := range message.GetGrants() {
		s.received++
		s.credit--
		if reason := r.take(s, grant); reason != "" {
			r.refuse(s, grant.Lease, reason)
		}
	}
	for _, each := range control.GetRevoked() {
		r.revoke(s, leaseKey{each.LeaseId, each.Epoch}, each.Reason)
	}
	for _, each := range control.GetClaims() {
		if l := r.held[each.LeaseId]; l != nil && l.epoch == each.Epoch {
			l.session = s
		} else {
			r.refuse(s, each, "NOT_HELD")
		}
	}
	switch {
	case beat != nil && !beat.Renewed, fault.GetReason() == "INSTANCE_ENDED":
		return r.endInstance()
	case fault != nil:
		return fmt.Errorf("%s: %s", fault.Reason, fault.Message)
	case !s.isLive:
		return errors.New("the first frame has no answer to the attach")
	}
	return nil
}

func (r *Runner) refuse(s *session, l *types.Lease, reason string) {
	r.deny(leaseKey{l.LeaseId, l.Epoch})
	s.refusals = append(s.refusals, &types.GrantRefusal{LeaseId: l.LeaseId, Epoch: l.Epoch, Reason: reason})
}

// answered forgets a report, and the lease that it ended.
func (r *Runner) answered(s *session, id string) {
	if each := r.reports[id]; each != nil && each.sentOn == s {
		delete(r.reports, id)
		s.inFlight--
		if l := r.held[each.Head.LeaseId]; l != nil && l.epoch == each.Head.Epoch {
			delete(r.held, l.id)
		}
	}
}

// write sends what is owed, until the stream or the runner ends.
func (r *Runner) write(ctx context.Context, s *session, stream grpc.ClientStream) {
	for {
		frame, changed := r.frame(s)
		for ; frame != nil && ctx.Err() == nil; frame, changed = r.frame(s) {
			_ = stream.SendMsg(frame) // when it fails, the reader sees why, and the context is done
		}
		select {
		case <-ctx.Done():
			return
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
	now, free := time.Now(), r.places
	if s.isBeating && now.Sub(s.heardAt) > 2*s.beatEvery && now.Sub(s.beatSentAt) > 2*s.beatEvery {
		s.giveUp(errors.New("the coordinator is silent"))
	}
	if !s.isLive {
		return nil, r.changed
	}
	control := &types.HolderControl{Refusals: s.refusals, Drain: r.draining && !s.drainSaid}
	frame = &pb.SessionRequest{Control: control}
	s.refusals, s.drainSaid = nil, r.draining
	for _, each := range r.reports {
		// A report goes to the coordinator that serves its lease, or to any other when that one is gone.
		isOurs := each.sentOn == nil && (each.home == s || !r.sessions[each.home])
		if isOurs && s.inFlight < reportsInFlight && len(frame.Reports) < reportsInFrame {
			each.sentOn, s.inFlight = s, s.inFlight+1
			frame.Reports = append(frame.Reports, each.RunReport)
		}
	}
	isBeat := !s.isBeating && (s.beatOwed || now.Sub(s.beatSentAt) >= s.beatEvery)
	for _, l := range r.held {
		if l.progress != nil && isBeat {
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
		s.beatNumber, s.beatSentAt, s.isBeating, s.beatOwed = s.beatNumber+1, now, true, false
		// A full beat is always right. A runner with thousands of leases would send the changes only.
		held := r.leases()
		control.Beat = &types.Beat{Number: s.beatNumber, Full: true, Held: held, HeldCount: int32(len(held))}
	}
	if s.received == s.counted && proto.Size(control)+len(frame.Reports) == 0 {
		return nil, r.changed
	}
	control.GrantsSeen, s.counted = s.received, s.received
	return frame, r.changed
}
