package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gobridge/gobridge"
)

// Bounds of the dead-letter methods.
const (
	defaultLimit = 100
	maxLimit     = 1000
	// maxIDs bounds the ids that one request names.
	maxIDs = 1000
	// maxDeletes bounds the entries that one request deletes by filter, deleteBatch
	// those of one call of the store.
	maxDeletes  = 10_000
	deleteBatch = 500
	// pageBytes ends a page of complete dead letters early.
	pageBytes = 4 << 20
)

// DLQFilter selects dead letters; without fields it selects all. Since (included)
// and Before (excluded) are about the last failure.
type DLQFilter struct {
	RouteID  string            `json:"route_id,omitempty"`
	Category gobridge.Category `json:"category,omitempty"`
	Code     gobridge.Code     `json:"code,omitempty"`
	Since    time.Time         `json:"since,omitzero"`
	Before   time.Time         `json:"before,omitzero"`
}

// String is what the filter looks like in a body, for the log.
func (f DLQFilter) String() string {
	text, err := json.Marshal(f)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// DLQPage is the answer to a list of dead letters, oldest first.
type DLQPage struct {
	// Depth counts all dead letters of the bridge.
	Depth       int          `json:"depth"`
	DeadLetters []DeadLetter `json:"dead_letters"`
	// Next is the cursor of the next page, empty on the last one.
	Next string `json:"next"`
}

// DLQDelete asks for a deletion by ids or by filter; a filter needs Confirm.
type DLQDelete struct {
	IDs     []string   `json:"ids,omitempty"`
	Filter  *DLQFilter `json:"filter,omitempty"`
	Confirm bool       `json:"confirm,omitempty"`
}

// DLQDeleted is the answer to it.
type DLQDeleted struct {
	Deleted int `json:"deleted"`
	// More tells that the filter selects more than one request deletes.
	More bool `json:"more"`
}

// letterID is the shape of the ids that stores give to dead letters.
var letterID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

var categories = []string{
	string(gobridge.CategoryPermanent), string(gobridge.CategoryExpired), string(gobridge.CategoryPoison),
	string(gobridge.CategoryUnstableIdentity), string(gobridge.CategoryRetryUnsupported),
	string(gobridge.CategoryFiltered), string(gobridge.CategorySubscriptionRemoved),
}

// selection is the filter as the store takes it.
func (f *DLQFilter) selection() (gobridge.DLQFilter, error) {
	if f.Category != "" && !slices.Contains(categories, string(f.Category)) {
		return gobridge.DLQFilter{}, badRequest("categories: "+strings.Join(categories, ", "), "unknown category %q", f.Category)
	}
	if !f.Since.IsZero() && !f.Before.IsZero() && !f.Since.Before(f.Before) {
		return gobridge.DLQFilter{}, badRequest("", "since is not before before: nothing can match")
	}
	return gobridge.DLQFilter{RouteID: f.RouteID, Category: f.Category, Code: f.Code, Since: f.Since, Before: f.Before}, nil
}

// dlq returns the queue of the bridge.
func (a *API) dlq() (gobridge.DLQ, error) {
	if q := a.op.DLQ(); q != nil {
		return q, nil
	}
	return nil, &failure{http.StatusNotFound, Error{"the bridge has no dead-letter queue", "stores.dlq is of type none"}}
}

func (a *API) listDLQ(c *call) error {
	c.quiet = true
	if err := c.known("route_id", "category", "code", "since", "before", "limit", "cursor", "full"); err != nil {
		return err
	}
	query := c.URL.Query()
	f := DLQFilter{
		RouteID: query.Get("route_id"), Category: gobridge.Category(query.Get("category")), Code: gobridge.Code(query.Get("code")),
	}
	for name, at := range map[string]*time.Time{"since": &f.Since, "before": &f.Before} {
		if text := query.Get(name); text != "" {
			t, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return badRequest("write it as "+exampleTime, "%s is not a time", name)
			}
			*at = t
		}
	}
	if cursor := query.Get("cursor"); cursor != "" && !letterID.MatchString(cursor) {
		return badRequest("take the next of an answer, the id of a dead letter", "cursor is none of the dead letters")
	}
	limit, err := number(query.Get("limit"), 1, defaultLimit)
	if err != nil {
		return err
	}
	full, err := boolean(query.Get("full"))
	if err != nil {
		return err
	}
	c.quiet = !full // it reveals payloads
	selected, err := f.selection()
	if err != nil {
		return err
	}
	q, err := a.dlq()
	if err != nil {
		return err
	}
	// One more than asked for tells whether there is a next page.
	selected.After, selected.Limit = query.Get("cursor"), limit+1
	page := DLQPage{DeadLetters: []DeadLetter{}}
	size := 0
	for d, err := range q.List(c.Context(), selected) {
		if err != nil {
			return err
		}
		if n := len(page.DeadLetters); n == limit || full && size >= pageBytes {
			page.Next = page.DeadLetters[n-1].ID
			break
		}
		page.DeadLetters = append(page.DeadLetters, deadLetter(d, full))
		size += len(d.Envelope.Payload)
	}
	if page.Depth, err = q.Depth(c.Context()); err != nil {
		return err
	}
	c.detail("entries", len(page.DeadLetters))
	return c.answer(http.StatusOK, page)
}

func (a *API) showDLQ(c *call) error {
	id := c.PathValue("id")
	c.detail("dead_letter_id", id)
	if err := c.known(); err != nil {
		return err
	}
	q, err := a.dlq()
	if err != nil {
		return err
	}
	d, err := q.Get(c.Context(), id)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, deadLetter(d, true))
}

func (a *API) deleteDLQ(c *call) error {
	var req DLQDelete
	if err := c.decode(&req, `{"ids": ["..."]} or {"filter": {"route_id": "up", "before": "`+exampleTime+`"}, "confirm": true}`); err != nil {
		return err
	}
	if err := oneOf(req.IDs, req.Filter); err != nil {
		return err
	}
	q, err := a.dlq()
	if err != nil {
		return err
	}
	var done DLQDeleted
	if req.Filter == nil {
		c.detail("ids", len(req.IDs))
		done.Deleted, err = q.Delete(c.Context(), req.IDs...)
	} else {
		c.detail("filter", *req.Filter)
		if !req.Confirm {
			return badRequest(`add "confirm": true`, "deleting by filter needs a confirmation")
		}
		var selected gobridge.DLQFilter
		if selected, err = req.Filter.selection(); err != nil {
			return err
		}
		done, err = deleteSelected(c.Context(), q, selected)
	}
	// What was deleted before an error is gone: the log says so.
	c.detail("deleted", done.Deleted)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, done)
}

// deleteSelected deletes up to maxDeletes entries.
func deleteSelected(ctx context.Context, q gobridge.DLQ, f gobridge.DLQFilter) (done DLQDeleted, err error) {
	ids := make([]string, 0, deleteBatch)
	remove := func() error {
		n, err := q.Delete(ctx, ids...)
		done.Deleted += n
		ids = ids[:0]
		return err
	}
	seen := 0
	f.Limit = maxDeletes + 1
	for d, err := range q.List(ctx, f) {
		if err != nil {
			return done, err
		}
		if seen++; seen > maxDeletes {
			done.More = true
			break
		}
		if ids = append(ids, d.ID); len(ids) == deleteBatch {
			if err := remove(); err != nil {
				return done, err
			}
		}
	}
	if len(ids) > 0 {
		err = remove()
	}
	return done, err
}

// oneOf checks that a request selects in one way.
func oneOf(ids []string, f *DLQFilter) error {
	switch {
	case len(ids) > 0 && f != nil:
		return badRequest("", "ids and filter exclude each other")
	case len(ids) == 0 && f == nil:
		return badRequest(`an empty filter, "filter": {}, selects everything`, "name ids or a filter")
	case len(ids) > maxIDs:
		return badRequest("send several requests, or select by filter", "%d ids, more than %d", len(ids), maxIDs)
	case slices.Contains(ids, ""):
		return badRequest("GET /api/v1/admin/dlq lists them", "one of the ids is empty")
	}
	return nil
}

// number reads a count between lowest and maxLimit.
func number(text string, lowest, unset int) (int, error) {
	if text == "" {
		return unset, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < lowest || n > maxLimit {
		return 0, badRequest("", "limit is not a number from %d to %d", lowest, maxLimit)
	}
	return n, nil
}

func boolean(text string) (bool, error) {
	if text == "" {
		return false, nil
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, badRequest("", "full is not true or false")
	}
	return on, nil
}
