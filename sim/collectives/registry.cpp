#include "sim/collective.hpp"
