// The reference that our extender is measured against: it decodes what kube-scheduler sends with the upstream types
// and encoding/json, as extenders written in Go do, and echoes every node.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"

	extender "k8s.io/kube-scheduler/extender/v1"
)

func reply(w http.ResponseWriter, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// Without it a body of this size would be chunked, and slower to read.
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if _, err := w.Write(body); err != nil {
		log.Print(err)
	}
}

func decode(w http.ResponseWriter, r *http.Request) *extender.ExtenderArgs {
	var args extender.ExtenderArgs
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil
	}
	return &args
}

func main() {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /scheduler/filter", func(w http.ResponseWriter, r *http.Request) {
		if args := decode(w, r); args != nil {
			reply(w, extender.ExtenderFilterResult{NodeNames: args.NodeNames})
		}
	})
	mux.HandleFunc("POST /scheduler/prioritize", func(w http.ResponseWriter, r *http.Request) {
		args := decode(w, r)
		if args == nil {
			return
		}
		list := make(extender.HostPriorityList, 0, len(*args.NodeNames))
		for _, name := range *args.NodeNames {
			list = append(list, extender.HostPriority{Host: name, Score: 5})
		}
		reply(w, list)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(http.Serve(listener, mux))
}
